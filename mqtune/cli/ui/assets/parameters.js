// The tab of parameters: the metric against each parameter, with trials compared at a common time.
import { el, quietSelect } from "./elements.js";
import { number } from "./format.js";
import { api } from "./server.js";
import { AXES, awaitsReports, chartLink, chartMenu, emptyText, legendOf, picture, plotly, tips, watched } from "./chart.js";
import { importances, percent } from "./importances.js";
import { pairCard } from "./pair.js";

export function parametersTab(context) {
  const { name, states, scope } = context;
  const state = Object.assign({ at: "", y: "", metric: "", hidden: [] }, states.slices);
  states.slices = state;
  const link = (chart) => chartLink(chart, states, context.linked());
  const levels = el("span", { class: "bar" }),
    legend = el("div", { class: "legend" }),
    controls = el("span", { class: "bar push" }),
    note = el("p", { class: "note" });
  const row = el("div", { class: "bar" }, levels, controls, legend);
  const matter = importances(context, {
    title: "Importance",
    at: () => state.at,
    metric: () => state.metric,
    told: order,
  });
  const grid = el("div", { class: "cards", "data-kind": "slices" }, matter);
  let shares = [],
    last,
    drawn = Promise.resolve();
  const parallel = picture("picture", { name, kind: "parallel" }, "Parallel coordinates", {
    states,
    scope,
    link,
    brushed: context.brushed,
    more: () => [["at", state.at], ...shares.map((each) => ["order", each.name])],
  });
  const pair = pairCard(context);
  const cards = new Map();

  // Shows importances, and sorts the cards by them.
  function order(found) {
    const before = shares.map((each) => each.name).join();
    shares = found;
    arrange();
    if (shares.map((each) => each.name).join() === before) return;
    parallel.changed();
    if (last?.panels) drawPair();
  }
  function arrange() {
    const rank = (key) => {
      const at = shares.findIndex((each) => each.name === key);
      return at < 0 ? shares.length : at;
    };
    const keys = [...cards.keys()].sort((a, b) => rank(a) - rank(b));
    keys.forEach((key, index) => {
      const { node, share } = cards.get(key);
      share.textContent = percent(shares.find((each) => each.name === key)?.share);
      if (grid.children[index + 1] !== node) grid.insertBefore(node, grid.children[index + 1] ?? null);
    });
  }
  function cardOf(key) {
    const share = el("span", { class: "soft" }),
      range = el("span", { class: "note" }),
      plot = el("div", { class: "plot small" }),
      figure = el("figure", { class: "figure" }, plot);
    const own = chartMenu(
      key,
      `${name}-${key}`,
      () => [plot],
      () => [cards.get(key).panel],
      () => link("slices"),
    );
    const node = el(
      "section",
      { class: "card chart", "aria-label": key },
      el("div", { class: "title" }, el("h2", {}, key), share, el("div", { class: "controls" }, range, own)),
      figure,
    );
    return {
      node,
      share,
      range,
      plot,
      figure,
      listen: tips(node, { name, kind: "slices" }),
      panel: undefined,
      listens: false,
    };
  }
  function keepOnly(keys) {
    for (const [key, card] of cards) {
      if (keys.has(key)) continue;
      Plotly.purge(card.plot);
      card.node.remove();
      cards.delete(key);
    }
  }
  async function drawAll() {
    for (const [, card] of cards) {
      card.node.yName = state.metric || context.summary?.metrics[0];
      await draw(card.plot, card.panel, { ...state, key: state.at }, { tips: true, plainX: true, plainY: true });
      if (!card.listens) {
        card.listens = true;
        card.listen(card.plot);
      }
    }
  }
  function drawPair() {
    const { metrics = [], modes = [] } = context.summary ?? {},
      metric = state.metric || metrics[0];
    const ranked = [...shares.map((each) => each.name), ...last.panels.map(({ key }) => key)];
    const keys = [...new Set(ranked)].filter((key) => last.panels.some((panel) => panel.key === key));
    return pair.show(last.panels, keys, metric ?? "values", (modes[metrics.indexOf(metric)] ?? modes[0]) !== "max");
  }
  const redraw = () => (drawn = drawn.catch(() => {}).then(drawAll));

  watched(grid, async () => {
    const [found] = await Promise.all([
      api("picture", { name, kind: "slices", at: state.at, metric: state.metric, where: scope() }),
      plotly(),
    ]);
    last = found;
    if (found.nothing) {
      keepOnly(new Set());
      pair.hidden = true;
      note.textContent = awaitsReports(found.nothing)
        ? "Charts appear with the first report."
        : emptyText(found.nothing);
      return 2000;
    }
    note.textContent = found.remarks.filter((each) => !/^at | trials$/.test(each)).join(" · ");
    keepOnly(new Set(found.panels.map(({ key }) => key)));
    for (const panel of found.panels) {
      if (!cards.has(panel.key)) cards.set(panel.key, cardOf(panel.key));
      const card = cards.get(panel.key);
      card.panel = panel;
      card.range.textContent = panel.note;
      card.figure.setAttribute("aria-label", `${panel.key}: ${panel.note || found.note}`);
    }
    arrange();
    fillControls();
    const began = performance.now();
    await redraw();
    await drawPair();
    return Math.max(1000 * found.pause_s, 10 * (performance.now() - began));
  });

  function fillControls() {
    const metric = state.metric || context.summary?.metrics[0] || "values",
      { levels: at, choices } = last;
    const choose = (value) => {
      state.at = value;
      matter.forget();
      grid.again();
      matter.again();
      parallel.changed();
    };
    const unit = at?.unit;
    levels.replaceChildren(
      ...(at
        ? [
            el("span", { class: "soft" }, `Compare ${metric} at`),
            el(
              "div",
              { class: "segments", role: "group", "aria-label": "common time" },
              at.every
                .filter(({ trials }) => trials)
                .map((each) =>
                  el(
                    "button",
                    { type: "button", "aria-pressed": String(each.at === at.shown), onclick: () => choose(each.at) },
                    each.at === "best" ? "each trial's best" : `${unit} ${each.at}`,
                    el("small", {}, `${number(each.trials)} trials`),
                  ),
                ),
            ),
          ]
        : [el("span", { class: "soft" }, `${metric} of completed trials`)]),
    );
    const segments = levels.querySelector(".segments"),
      shown = segments?.querySelector("[aria-pressed=true]");
    // On a phone not all fit.
    if (shown)
      segments.scrollLeft = shown.offsetLeft - segments.offsetLeft - (segments.clientWidth - shown.offsetWidth) / 2;
    legend.replaceChildren(
      ...legendOf(
        last.panels.flatMap((panel) => panel.data.map((trace) => ({ ...trace, count: undefined }))),
        state,
        () => {
          fillControls();
          redraw();
        },
      ),
    );
    const { metrics = [] } = choices ?? {};
    controls.replaceChildren(
      ...[
        metrics.length > 1
          ? quietSelect("metric", Object.fromEntries(metrics), state.metric, (value) => {
              state.metric = value;
              choose(state.at);
            })
          : null,
        quietSelect("scale", AXES, state.y, (value) => {
          state.y = value;
          redraw();
        }),
      ].filter(Boolean),
    );
  }
  const recolor = () => {
    if (last?.panels) {
      fillControls();
      redraw();
      drawPair();
    }
  };
  dark.addEventListener("change", recolor);
  const parts = [grid, matter, parallel];
  return {
    nodes: [row, note, grid, pair, parallel],
    show() {},
    changed: (rows, isNew) => {
      if (isNew) parts.forEach((each) => each.changed());
    },
    again: () => parts.forEach((each) => each.changed()),
    end: () => {
      grid.stop();
      matter.end();
      pair.end();
      parallel.end();
      dark.removeEventListener("change", recolor);
      for (const { plot } of cards.values()) globalThis.Plotly?.purge(plot);
    },
  };
}
