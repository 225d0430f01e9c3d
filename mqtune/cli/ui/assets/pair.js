// The card of two parameters: a point for each trial that has both, coloured by its value.
import { el, quietSelect } from "./elements.js";
import { number } from "./format.js";
import { chartLink, chartMenu, tips } from "./chart.js";

// The colours of the best and the worst value, and of the rim that keeps pale points visible.
const BEST = "#2367c6",
  WORST = "#e1e5ea",
  RIM = "#7f8895";

// Returns the points of a parameter's panel by trial. Its other marks repeat a trial, or stand for several.
const pointsOf = (panel) =>
  new Map(
    panel.data
      .filter(({ mode, name }) => mode === "markers" && name !== "best")
      .flatMap(({ x, y, text }) => text.map((id, index) => [id, { place: x[index], value: y[index] }])),
  );

function panelOf(first, second, isMin) {
  const across = pointsOf(first),
    up = pointsOf(second);
  const both = [...across]
    .filter(([id]) => up.has(id))
    .map(([id, { place, value }]) => [id, place, up.get(id).place, value]);
  const isLog = first.layout.yaxis.type === "log",
    colors = both.map(([, , , value]) => (isLog ? Math.log10(value) : value));
  const low = Math.min(...colors),
    high = Math.max(...colors),
    ticks = low < high ? [low, (low + high) / 2, high] : [low];
  const marker = {
    color: colors,
    colorscale: [
      [0, isMin ? BEST : WORST],
      [1, isMin ? WORST : BEST],
    ],
    size: 8,
    line: { color: RIM, width: 0.7 },
    showscale: true,
    colorbar: {
      thickness: 10,
      outlinewidth: 0,
      tickvals: ticks,
      ticktext: ticks.map((tick) => number(Number((isLog ? 10 ** tick : tick).toPrecision(3)))),
    },
  };
  const column = (index) => both.map((row) => row[index]);
  return {
    key: `${first.key} and ${second.key}`,
    data: [{ type: "scatter", mode: "markers", name: "", x: column(1), y: column(2), text: column(0), marker }],
    layout: {
      xaxis: first.layout.xaxis,
      yaxis: { ...second.layout.xaxis, showgrid: !second.layout.xaxis.tickvals },
      annotations: [],
      shapes: [],
    },
  };
}

export function pairCard({ name, states, linked }) {
  const state = Object.assign({ x: "", y: "" }, states.pair);
  states.pair = state;
  const controls = el("div", { class: "controls" }),
    note = el("p", { class: "note" }),
    plot = el("div", { class: "plot" }),
    figure = el("figure", { class: "figure" }, plot);
  const node = el(
    "section",
    { class: "card chart", "data-kind": "pair", "aria-label": "Two parameters", hidden: "" },
    el("div", { class: "title" }, el("h2", {}, "Two parameters"), controls),
    note,
    figure,
  );
  const listen = tips(node, { name, kind: "pair" }),
    menu = chartMenu(
      "Two parameters",
      `${name}-pair`,
      () => [plot],
      () => [panel],
      () => chartLink("pair", states, linked()),
    );
  let given,
    panel,
    listens = false;

  // Shows the parameters of these panels. The first two keys are the default.
  async function show(panels, keys, metric, isMin) {
    given = [panels, keys, metric, isMin];
    node.hidden = keys.length < 2;
    if (node.hidden) return;
    const known = (key) => (keys.includes(key) ? key : undefined),
      x = known(state.x) ?? keys.find((key) => key !== state.y),
      y = (state.y !== x && known(state.y)) || keys.find((key) => key !== x);
    const names = Object.fromEntries(keys.map((key) => [key, key]));
    const select = (axis, [value, other]) =>
      quietSelect(axis, names, value, (chosen) => {
        // The other axis gets the former parameter if it had the chosen one.
        Object.assign(state, chosen === other ? { x: y, y: x } : { x, y, [axis]: chosen });
        show(...given);
      });
    controls.replaceChildren(select("x", [x, y]), select("y", [y, x]), menu);
    panel = panelOf(...[x, y].map((key) => panels.find((each) => each.key === key)), isMin);
    note.textContent = `colour: ${metric} · the bluer, the better`;
    figure.setAttribute("aria-label", `${panel.key}: ${note.textContent}`);
    await draw(plot, panel, { key: panel.key }, { tips: true });
    if (!listens) {
      listens = true;
      listen(plot);
    }
  }
  node.show = show;
  node.end = () => globalThis.Plotly?.purge(plot);
  return node;
}
