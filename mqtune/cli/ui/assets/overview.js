// The first tab of an experiment: its progress, its best trials, and the importances of its parameters.
import { card, el, glyph, place, progress, refill, star, status, table } from "./elements.js";
import { ARROWS, about, ago, cellFormat, counted, lasted, number } from "./format.js";
import { api } from "./server.js";
import { chartLink, picture, watched } from "./chart.js";
import { importances } from "./importances.js";
import { secondsLeft } from "./experiment.js";

const BEST_ROWS = 5;
const SHOWN_PARAMETERS = 6;

const tile = (kind, label, value, below) =>
  el(
    "div",
    { class: `tile ${kind}` },
    el("div", { class: "label" }, label),
    el("div", { class: "value" }, value),
    el("div", { class: "below" }, below),
  );

// Returns the tiles for an experiment's summary and facts. Facts may still be missing.
function tiles(summary, facts) {
  const { name, best, metrics, modes, counts, ended, planned, trials, outcome, unit } = summary;
  const now = summary.is_virtual ? facts?.newest_at : Date.now() / 1000,
    running = counts.running ?? 0,
    queued = counts.queued ?? 0;
  const since =
    best && facts?.found_at
      ? ` · ${summary.is_virtual ? "" : `${ago(facts.found_at, now)}, `}${counted(facts.since, "trial")} since`
      : "";
  const isSingle = metrics.length === 1;
  const found = isSingle
    ? tile(
        "best",
        `Best ${metrics[0]} ${ARROWS[modes[0]] ?? ""}`,
        [
          best ? el("span", { class: "figure" }, best.value) : "–",
          best && best.time !== null ? el("small", {}, `at ${unit} ${number(best.time)}`) : null,
        ].filter(Boolean),
        best ? [el("a", { href: place("e", name, best.trial) }, `trial ${best.trial}`), since] : "no report yet",
      )
    : tile(
        "best",
        metrics.map((metric, index) => `${metric} ${ARROWS[modes[index]] ?? ""}`).join(", "),
        [el("span", { class: "figure" }, number(summary.front)), el("small", {}, "on the Pareto front")],
        best ? el("a", { href: place("e", name, best.trial) }, `trial ${best.trial}`) : "",
      );
  const left = secondsLeft(summary, facts);
  const words = [
    [running, "running"],
    [queued, outcome ? "queued" : "waiting"],
    [counts.completed, "completed"],
    [counts.early_stopped, "stopped early"],
    [counts.paused, "paused"],
    [counts.failed, "failed"],
    [counts.abandoned, "abandoned"],
  ]
    .filter(([count]) => count)
    .map(([count, word]) => `${number(count)} ${word}`);
  const done = tile(
    "",
    [el("span", {}, "Progress"), left === undefined ? null : el("span", {}, `${about(left)} left`)].filter(Boolean),
    [
      number(ended),
      planned ? el("small", {}, `of ${number(Math.max(planned, trials))}`) : null,
      planned ? progress(summary) : null,
    ].filter(Boolean),
    words.join(" · "),
  );
  const spent = facts ? facts.used + facts.saved : 0;
  const saved =
    facts?.saved > 0
      ? tile(
          "saved",
          "Saved by early stopping",
          `${Math.round((100 * facts.saved) / spent)} %`,
          `${number(facts.saved)} of ${number(spent)} ${unit}s`,
        )
      : tile(
          "saved",
          "Reports",
          number(summary.reports),
          facts?.used ? `${number(facts.used)} ${unit}s in ended trials` : "",
        );
  const speed = facts?.per_minute
    ? facts.per_minute >= 0.95
      ? `${Number(facts.per_minute.toPrecision(2))} trials/min`
      : `1 trial in ${lasted(60 / facts.per_minute)}`
    : "";
  const most = summary.limits.max_concurrent;
  const runs = outcome
    ? tile(
        "half",
        "Duration",
        lasted((facts?.newest_at ?? summary.created_at ?? 0) - (summary.created_at ?? 0)),
        summary.is_virtual ? "virtual time" : "",
      )
    : tile(
        "half",
        "Running",
        [number(running), most ? el("small", {}, `of ${number(most)} at once`) : null].filter(Boolean),
        queued && !running ? el("span", { class: "warn-text" }, `${number(queued)} wait for a slot`) : speed,
      );
  const failed = counts.failed ?? 0;
  const error =
    failed && facts?.error
      ? el(
          "a",
          { href: `#/e/${encodeURIComponent(name)}?tab=trials&where=${encodeURIComponent("status=failed")}` },
          `${number(facts.error_count)} × ${facts.error}`,
        )
      : "";
  const failures = tile(
    "half",
    "Failed",
    [number(failed), el("small", {}, `of ${number(ended)} ended`), failed ? glyph("failed") : null].filter(Boolean),
    error,
  );
  return [found, done, saved, runs, failures];
}

export function overviewTab(context) {
  const { name, states, scope } = context;
  const strip = el("section", { class: "card strip", "aria-label": "figures" });
  const link = (chart) => chartLink(chart, states, context.linked());
  const charts = [
    ["history", "Best over time"],
    ["curves", "Learning curves"],
  ].map(([kind, title]) => picture("picture", { name, kind }, title, { states, scope, link }));
  const pair = el("div", { class: "pair" }, charts);
  // The chart of the Pareto front, if there are several metrics.
  let front;
  const list = el("div", {}),
    best = card(
      "Best trials",
      { class: "card", controls: el("a", { href: `#/e/${encodeURIComponent(name)}?tab=trials` }, "all trials") },
      list,
    );
  const matter = importances(context, {
    most: SHOWN_PARAMETERS,
    title: "Which parameter matters",
    link: el("a", { href: `#/e/${encodeURIComponent(name)}?tab=parameters` }, "parameters"),
  });
  watched(best, async () => {
    const found = await api("trials", { name, count: BEST_ROWS });
    showBest(list, found, context);
    return Math.max(1000, 1000 * found.pause_s);
  });
  const parts = [...charts, best, matter];
  return {
    nodes: [strip, pair, el("div", { class: "pair narrow" }, best, matter)],
    show(summary, facts) {
      refill(strip, tiles(summary, facts));
      if (front || summary.metrics.length < 2) return;
      front = picture("picture", { name, kind: "pareto" }, "Pareto front", { states, scope, link, wide: true });
      charts.push(front);
      parts.push(front);
      pair.append(front);
    },
    changed: (rows, isNew) => {
      if (isNew) parts.forEach((each) => each.changed());
    },
    again: () => [...charts, matter].forEach((each) => each.changed()),
    end: () => {
      charts.forEach((each) => each.end());
      best.stop();
      matter.end();
    },
  };
}

// Shows the best trials with their most useful columns.
function showBest(list, found, { name, summary }) {
  if (!found.total) {
    list.replaceChildren(el("p", { class: "nothing" }, "No trial has started"));
    return;
  }
  const isSingle = (summary?.metrics.length ?? 1) === 1,
    parameters = found.columns.filter(({ kind }) => kind === "parameter").slice(0, 6);
  const metrics = isSingle
    ? found.columns.filter(({ key }) => key === "best" || key === "at")
    : found.columns.filter(({ key }) => summary.metrics.some((metric) => key === `metrics.${metric}`));
  const columns = [...metrics, ...parameters, { key: "ran_s", title: "duration" }];
  const values = (key) => found.rows.map((row) => row.cells[key]);
  const formats = Object.fromEntries(
    columns.map((column) => [column.key, cellFormat(column, values(column.key))]),
  );
  const side = ({ key }) => (values(key).some((value) => typeof value === "number") ? "right" : null);
  const first = parameters[0]?.key;
  // Phones show only the metrics. The list of trials has the rest.
  const classes = (column, ...more) =>
    [
      ...more,
      column.key === first || column.key === "ran_s" ? "begins" : "",
      metrics.includes(column) ? "" : "seldom",
    ]
      .filter(Boolean)
      .join(" ");
  const cells = (row, rank) => [
    el(
      "td",
      {},
      el(
        "span",
        { class: "state" },
        el("a", { href: place("e", name, row.id) }, row.id),
        rank === 0 && isSingle && row.cells.best !== undefined ? star() : null,
      ),
    ),
    el("td", {}, status(row.status)),
    ...columns.map((column) =>
      el(
        "td",
        {
          class: classes(column, side(column) ?? "cut", column.key === "best" ? "best" : ""),
        },
        formats[column.key](row.cells[column.key]),
      ),
    ),
  ];
  refill(list, [
    table(
      [
        "trial",
        "status",
        ...columns.map((column) => [column.title, classes(column, side(column) ?? "")]),
      ],
      found.rows.map(cells),
      { "aria-label": "best trials" },
    ),
  ]);
}
