// Draws the panels of charts in the colours of the page. The server sends them as Plotly's data and layout.
"use strict";

const dark = matchMedia("(prefers-color-scheme: dark)"),
  coarse = matchMedia("(pointer: coarse)");
// The page's colours by the colours that the server sends, which are those of the light mode.
const TOKENS = {
  "#1a1f26": "--text",
  "#57606d": "--soft",
  "#e1e5ea": "--line",
  "#e8f0fc": "--accent-weak",
  "#2367c6": "--completed",
  "#08775f": "--running",
  "#7f8895": "--stopped",
  "#9c4a8c": "--paused",
  "#8f5a00": "--warn",
  "#c42b3a": "--failed",
  "#ffffff": "--surface",
};
const DATA = new Set(["x", "y", "text", "ticktext", "tickvals", "name"]);

function token(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function colored(color) {
  return TOKENS[color] ? token(TOKENS[color]) : color;
}

function recolored(value, key) {
  if (typeof value === "string") return colored(value);
  if (value === null || typeof value !== "object" || DATA.has(key)) return value;
  if (Array.isArray(value)) return value.map((each) => recolored(each));
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, recolored(each, name)]));
}

// Returns the entry of the legend to which a trace belongs. Curves and the marks at their ends share one entry.
const groupOf = (trace) => trace.legendgroup ?? "";

// Returns an exponential moving average of a line's values. It begins again at each gap.
function smoothed(values, weight) {
  let last = null;
  return values.map((value) => (last = value === null || last === null ? value : weight * last + (1 - weight) * value));
}

const OPTIONS = { responsive: true, displaylogo: false, displayModeBar: false };

// Draws a panel into an element, which may already have a panel. Returns a promise.
// *chosen* has the user's choices: y, smooth, hidden and key. *look* says what to leave out, as the card shows it.
function draw(node, panel, chosen = {}, look = {}) {
  const { data, layout } = recolored({ data: panel.data, layout: panel.layout });
  const font = { family: token("--sans"), size: 12, color: token("--soft") };
  const height = node.clientHeight || 272,
    brushes = Boolean(look.brushes) && !coarse.matches;
  const { xaxis, yaxis } = layout;
  const titled = Boolean(xaxis.title?.text) && !look.plainX;
  Object.assign(xaxis, {
    title: { ...xaxis.title, text: titled ? xaxis.title.text : "", standoff: 4, font },
    showline: true,
    linecolor: token("--edge"),
  });
  Object.assign(yaxis, { title: { ...yaxis.title, text: look.plainY ? "" : yaxis.title?.text, standoff: 6, font } });
  // Names may be long, and may have two lines.
  const names = (xaxis.ticktext ?? []).join("");
  xaxis.automargin = names.includes("<br>") || names.length > 60;
  yaxis.automargin = true;
  for (const axis of [xaxis, yaxis])
    Object.assign(axis, { zeroline: false, tickfont: font, fixedrange: coarse.matches });
  if (chosen.y && !yaxis.tickvals && (yaxis.type ?? "linear") !== chosen.y) {
    // The server's steps between ticks fit only its own kind of axis.
    for (const each of ["dtick", "tick0", "tickformat"]) delete yaxis[each];
    yaxis.type = chosen.y;
    if (chosen.y === "log") Object.assign(yaxis, { dtick: "D2", tickformat: "~g" });
  }
  for (const each of layout.annotations) Object.assign(each, { font, bgcolor: token("--surface"), borderpad: 1 });
  for (const trace of data) {
    trace.showlegend = false;
    if (chosen.hidden) trace.visible = !chosen.hidden.includes(groupOf(trace));
    if (look.tips) trace.hoverinfo = "none";
    if (chosen.smooth && trace.mode === "lines") trace.y = smoothed(trace.y, chosen.smooth);
  }
  const dragmode = coarse.matches ? false : brushes ? "select" : "zoom";
  Object.assign(layout, {
    font,
    height,
    autosize: true,
    hovermode: "closest",
    showlegend: false,
    dragmode,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 44, r: 14, t: look.top ?? 10, b: titled ? 36 : 26 },
    hoverlabel: { align: "left" },
    selectionrevision: Date.now(),
    uirevision: `kept ${chosen.key ?? ""} ${chosen.y ?? ""}`,
  });
  return Plotly.react(node, data, layout, OPTIONS);
}
