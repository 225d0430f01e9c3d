// Draws pictures, which come as Plotly's data and layout, in the colours of the page.
"use strict";

const dark = matchMedia("(prefers-color-scheme: dark)");
const DARK = {
  "#000000": "#ffffff", "#222222": "#d1d7de", "#E5E5E5": "#2b3138", "#C8C8C8": "#4b535d", "#0072B2": "#56b4e9", "#56B4E9": "#9bd3f5",
  "#D55E00": "#ff7b39", white: "rgba(0,0,0,0)", "rgba(255,255,255,0.8)": "rgba(22,27,34,0.8)",
};
const LIGHT = { white: "rgba(0,0,0,0)" };
const DATA = new Set(["x", "y", "text", "ticktext", "tickvals", "name"]);

function recolored(value, colors, key) {
  if (typeof value === "string") return colors[value] ?? value;
  if (value === null || typeof value !== "object" || DATA.has(key)) return value;
  if (Array.isArray(value)) return value.map((each) => recolored(each, colors));
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, recolored(each, colors, name)]));
}

// Without Plotly's button that sends data to a server of its own.
const OPTIONS = { responsive: true, displaylogo: false, displayModeBar: "hover", modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]] };

// Draws a picture into an element; the same element may be drawn into again. Returns when that is done.
function draw(node, picture) {
  const { data, layout } = recolored({ data: picture.data, layout: picture.layout }, dark.matches ? DARK : LIGHT);
  const titled = layout.annotations.some((each) => each.xref === "paper");
  const margin = { t: titled ? 28 : 12, b: layout.showlegend ? 90 : 50, l: innerWidth < 600 ? 45 : 70, r: 15 };
  const height = layout.height - layout.margin.t - layout.margin.b + margin.t + margin.b;
  Object.assign(layout, { height, margin, autosize: true, uirevision: "kept", dragmode: innerWidth < 600 ? false : "zoom" });
  // Plotly takes the element's when that changes its width.
  node.style.height = `${height}px`;
  layout.modebar = { bgcolor: "rgba(0,0,0,0)", color: layout.font.color };
  layout.hoverlabel = { align: "left" };
  delete layout.title;
  delete layout.width;
  for (const axis of Object.keys(layout).filter((name) => /^[xy]axis/.test(name))) Object.assign(layout[axis], { automargin: true, title: { ...layout[axis].title, standoff: 8 } });
  return Plotly.react(node, data, layout, OPTIONS);
}
