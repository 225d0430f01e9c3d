// Draws pictures, which come as Plotly's data and layout, in the colours of the page.
"use strict";

const dark = matchMedia("(prefers-color-scheme: dark)");
const DARK = {
  "#000000": "#ffffff", "#222222": "#d1d7de", "#E5E5E5": "#2b3138", "#C8C8C8": "#4b535d", "#0072B2": "#56b4e9", "#56B4E9": "#9bd3f5",
  "#D55E00": "#ff7b39", white: "rgba(0,0,0,0)", "rgba(255,255,255,0.8)": "rgba(22,27,34,0.8)",
};
const LIGHT = { white: "rgba(0,0,0,0)" };
const DATA = new Set(["x", "y", "text", "ticktext", "tickvals", "name"]);

function colored(color) {
  return (dark.matches ? DARK : LIGHT)[color] ?? color;
}

function recolored(value, key) {
  if (typeof value === "string") return colored(value);
  if (value === null || typeof value !== "object" || DATA.has(key)) return value;
  if (Array.isArray(value)) return value.map((each) => recolored(each));
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, recolored(each, name)]));
}

// The entry of the legend that a trace belongs to: curves and the marks where they end have one.
const groupOf = (trace) => (trace.legendgroup ?? "").replace(/ here$/, "");

// A moving average of a line's values, which begins anew where the line is parted.
function smoothed(values, weight) {
  let last = null;
  return values.map((value) => (last = value === null || last === null ? value : weight * last + (1 - weight) * value));
}

// Without Plotly's button that sends data to a server of its own.
const OPTIONS = { responsive: true, displaylogo: false, displayModeBar: "hover" };
const BUTTONS = ["zoom2d", "pan2d", "resetScale2d"];

// Draws a picture into an element; the same element may be drawn into again. Returns when that is done.
// A page that has a legend and hints of its own gives a state, with what its reader has chosen.
function draw(node, picture, state) {
  const { data, layout } = recolored({ data: picture.data, layout: picture.layout });
  const titled = layout.annotations.some((each) => each.xref === "paper"), narrow = innerWidth < 600;
  const margin = { t: titled ? 28 : 12, b: layout.showlegend && !state ? 90 : 50, l: narrow ? 45 : 70, r: 15 };
  const height = layout.height - layout.margin.t - layout.margin.b + margin.t + margin.b;
  const brushes = Boolean(picture.scales?.length && state);
  Object.assign(layout, { height, margin, autosize: true, uirevision: `kept ${state?.y} ${state?.x} ${state?.metric}`, dragmode: narrow ? false : brushes ? "select" : "zoom", selectionrevision: Date.now() });
  // Plotly takes the element's when that changes its width.
  node.style.height = `${height}px`;
  layout.modebar = { bgcolor: "rgba(0,0,0,0)", color: layout.font.color, activecolor: getComputedStyle(node).getPropertyValue("--running").trim() };
  layout.hoverlabel = { align: "left" };
  delete layout.title;
  delete layout.width;
  for (const axis of Object.keys(layout).filter((name) => /^[xy]axis/.test(name))) {
    Object.assign(layout[axis], { automargin: true, title: { ...layout[axis].title, standoff: 8 } });
    if (!state?.y || !axis.startsWith("y") || layout[axis].tickvals || (layout[axis].type ?? "linear") === state.y) continue;
    // The steps between ticks are those of the other kind.
    for (const each of ["dtick", "tick0", "tickformat"]) delete layout[axis][each];
    layout[axis].type = state.y;
  }
  // The axes of parallel coordinates stand close there.
  if (narrow && picture.scales?.length) for (const each of layout.annotations) each.font = { size: 9 };
  if (state) {
    layout.showlegend = false;
    for (const trace of data) {
      trace.hoverinfo = "none";
      trace.visible = !state.hidden.includes(groupOf(trace));
      if (state.smooth && trace.mode === "lines") trace.y = smoothed(trace.y, state.smooth);
    }
  }
  return Plotly.react(node, data, layout, { ...OPTIONS, modeBarButtons: [[...(brushes ? ["select2d"] : []), ...BUTTONS, ...(state ? [] : ["toImage"])]] });
}
