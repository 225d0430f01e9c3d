// The page of one experiment: its head, its tabs, and the stream of changes that all tabs share.
import { collapsible, el, glyph, kindOf, progress, refill } from "./elements.js";
import { about, ago, exact, number } from "./format.js";
import { api, me, paced, problem, stream } from "./server.js";
import { chartStates } from "./chart.js";
import { attention } from "./attention.js";
import { experimentButtons } from "./steering.js";
import { historyTab } from "./history.js";
import { labels } from "./labels.js";
import { overviewTab } from "./overview.js";
import { parametersTab } from "./parameters.js";
import { scheduleTab } from "./schedule.js";
import { trialsTab } from "./trials.js";

const TABS = {
  "": ["Overview", overviewTab],
  trials: ["Trials", trialsTab],
  parameters: ["Parameters", parametersTab],
  schedule: ["Schedule", scheduleTab],
  log: ["Log", historyTab],
};
// The tab of each chart, for links to a chart.
const OF_CHART = {
  slices: "parameters",
  pair: "parameters",
  parallel: "parameters",
  importances: "parameters",
  rungs: "schedule",
  timeline: "schedule",
  lineage: "schedule",
};
const CHARTED = new Set(["", "parameters", "schedule"]);
// The time after the last typed letter before charts use the filter.
const TYPED_MS = 600;
const MODES = { min: "minimise", max: "maximise" };

// Joins filters by "and". Each gets parentheses, as it may have an "or".
const all = (...filters) => {
  const given = filters.filter(Boolean);
  return given.length > 1 ? given.map((each) => `(${each})`).join(" and ") : given.join("");
};

// Returns the estimated seconds until all planned trials have ended or a limit of wall time is over, or undefined.
export function secondsLeft({ planned, ended, outcome, is_virtual }, facts) {
  if (outcome || !facts) return undefined;
  const ends = [];
  if (planned > ended && facts.per_minute) ends.push((60 * (planned - ended)) / facts.per_minute);
  if (facts.time_limit_at && !is_virtual) ends.push(Math.max(0, facts.time_limit_at - Date.now() / 1000));
  return ends.length ? Math.min(...ends) : undefined;
}

export function experimentPage(main, name) {
  const asked = new URLSearchParams(location.hash.split("?")[1] ?? "");
  const state = el("span", { class: "state" }),
    who = el("p", { class: "who" }),
    brief = el("span", { class: "brief" }),
    actions = el("span", { class: "actions" });
  const labelled = labels(name),
    strip = attention(name),
    body = el("div"),
    tabs = el("nav", { class: "tabs", "aria-label": "tabs" });
  const stopped = el("input", { type: "checkbox" }),
    follows = el("input", { type: "checkbox" });
  const options = el(
    "span",
    { class: "options" },
    el("label", { class: "check" }, stopped, "hide early-stopped"),
    el("label", { class: "check" }, follows, "apply table filter"),
  );
  const links = Object.fromEntries(
    Object.entries(TABS).map(([key, [title]]) => [
      key,
      el("a", { href: tabAddress(key) }, title, " ", el("small", {})),
    ]),
  );
  let summary,
    facts,
    tab,
    shownTab,
    typed,
    last = "",
    counts = { parameters: 0 };
  stopped.checked = asked.has("hide");
  follows.checked = asked.has("filter");

  // The data and functions that tabs share.
  const context = {
    name,
    states: chartStates(),
    where: asked.get("where") ?? "",
    get summary() {
      return summary;
    },
    get facts() {
      return facts;
    },
    scope: () => all(follows.checked ? context.where : "", stopped.checked ? "status!=early_stopped" : ""),
    linked: () => ({
      tab: shownTab,
      hide: stopped.checked ? "1" : "",
      filter: follows.checked ? "1" : "",
      where: context.where,
    }),
    filtered(text) {
      context.where = text;
      clearTimeout(typed);
      if (follows.checked) typed = setTimeout(() => tab?.again?.(), TYPED_MS);
    },
    // Filters the table by the condition of a box in parallel coordinates, and shows it.
    brushed(where) {
      if (where) {
        context.where = all(context.where, where);
        location.hash = tabAddress("trials");
      }
    },
    parameters(count) {
      counts.parameters = count;
      fillTabs();
    },
  };
  [stopped, follows].forEach((each) => each.addEventListener("change", () => tab?.again?.()));
  tabs.append(...Object.values(links), options);
  main.replaceChildren(
    el("div", { class: "head" }, el("h1", {}, name), state, labelled.tags, brief, actions),
    who,
    labelled.notes,
    tabs,
    body,
  );
  if (me.steer) {
    const parts = experimentButtons(name, () => summary ?? { counts: {}, limits: {} });
    actions.append(...collapsible(parts, `actions of ${name}`));
  }

  function tabAddress(key) {
    return `#/e/${encodeURIComponent(name)}${key ? `?tab=${key}` : ""}`;
  }
  function route() {
    const wanted = new URLSearchParams(location.hash.split("?")[1] ?? ""),
      chart = wanted.get("chart");
    const key = wanted.get("tab") ?? OF_CHART[chart] ?? "",
      known = key in TABS ? key : "";
    if (known === shownTab) return;
    tab?.end();
    shownTab = known;
    for (const [each, link] of Object.entries(links)) {
      if (each === known) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    options.hidden = !CHARTED.has(known);
    brief.hidden = known === "";
    main.classList.toggle("broad", known === "trials");
    tab = TABS[known][1](context);
    body.replaceChildren(
      ...(known === ""
        ? [el("div", { class: "stack" }, strip.node, ...tab.nodes)]
        : [el("div", { class: "stack" }, ...tab.nodes)]),
    );
    if (summary) tab.show(summary, facts);
    if (chart) body.querySelector(`[data-kind="${CSS.escape(chart)}"]`)?.scrollIntoView({ block: "center" });
  }

  function fillTabs() {
    links.trials.lastChild.textContent = summary ? number(summary.trials) : "";
    links.parameters.lastChild.textContent = counts.parameters ? number(counts.parameters) : "";
  }
  function showHead() {
    const { best, metrics, modes } = summary,
      now = summary.is_virtual ? (facts?.newest_at ?? summary.created_at) : undefined;
    state.replaceChildren(glyph(kindOf(summary)), summary.state);
    actions.hidden = !me.steer || summary.outcome === "finished";
    const part = (label, value, more = "", kind = "") =>
      el("span", { class: kind }, `${label} `, el("b", {}, value), more ? ` ${more}` : "");
    const goal = metrics.map((metric, index) => [MODES[modes[index] ?? modes[0]] ?? "", metric]);
    refill(who, [
      ...goal.filter(([, metric]) => metric).map(([mode, metric]) => part(mode, metric)),
      summary.searcher ? part("search", summary.searcher) : el("span", {}, "no searcher"),
      summary.scheduler ? part("stopping", summary.scheduler, summary.range) : el("span", {}, "no early stopping"),
      summary.created_at
        ? el(
            "span",
            { class: "seldom", title: exact(summary.created_at) },
            "started ",
            el("b", {}, summary.is_virtual ? "in virtual time" : ago(summary.created_at, now)),
            summary.owner ? ` by ${summary.owner}` : "",
          )
        : null,
      summary.outcome && summary.reason ? el("span", {}, summary.reason) : null,
      summary.unreadable
        ? el("span", { class: "warn-text" }, `${number(summary.unreadable)} reports can't be read`)
        : null,
    ]);
    const left = secondsLeft(summary, facts);
    brief.replaceChildren(
      ...[
        best ? el("span", {}, "best ", el("b", {}, best.value)) : null,
        el(
          "span",
          { class: "bar" },
          progress(summary),
          el(
            "b",
            {},
            `${number(summary.ended)}${summary.planned ? ` / ${number(Math.max(summary.planned, summary.trials))}` : ""}`,
          ),
        ),
        left === undefined ? null : el("span", {}, `${about(left)} left`),
      ].filter(Boolean),
    );
    fillTabs();
  }
  function showOpening(text) {
    state.replaceChildren(glyph("running"), "opening");
    refill(who, [el("span", {}, text)]);
    // All charts and tables are empty.
    body.hidden = true;
  }
  const fetchFacts = paced(async () => {
    const found = await api("facts", { name });
    facts = found;
    if (summary) {
      showHead();
      tab?.show(summary, facts);
    }
    return Math.max(1000, 1000 * found.pause_s);
  });
  const end = stream(
    "events",
    { name },
    ({ summary: found, rows }) => {
      summary = found;
      body.hidden = false;
      problem(summary.problem);
      labelled.show(summary);
      strip.show(summary);
      showHead();
      tab.show(summary, facts);
      const key = JSON.stringify([summary.reports, summary.counts, summary.tags]);
      // Nothing that a tab shows has changed.
      if (key === last && !rows.length) return;
      tab.changed?.(rows, key !== last);
      if (key !== last) fetchFacts();
      last = key;
    },
    showOpening,
  );
  route();
  return {
    route,
    escape: () => tab?.escape?.(),
    end: () => {
      end();
      clearTimeout(typed);
      strip.end();
      fetchFacts.stop();
      tab?.end();
    },
  };
}
