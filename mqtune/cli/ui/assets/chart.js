// A picture with what a reader may choose of it: axes, metric, smoothing, what is hidden; a link brings that back, and it is saved as a file.
import { button, el, menu, number, place, save } from "./elements.js";
import { api, paced } from "./server.js";

// What most experiments have nothing for.
const RARE = new Set(["rungs", "lineage", "pareto"]);
const SMOOTHED = new Set(["curves", "trial"]);
const SCALED = new Set(["history", "curves", "slices", "rungs", "pareto", "trial", "runs", "parameters"]);
const AXES = { "": "by default", linear: "linear", log: "logarithmic" };
// What of a picture's state stands in a link.
const KEPT = ["metric", "x", "y", "smooth", "hidden"];

const seen = new IntersectionObserver((entries) => entries.forEach((each) => each.target.seen(each.isIntersecting)), { rootMargin: "200px" });

// A picture that is fetched when it comes into sight, and again when it has changed. Parameters go to the server with each request.
export function picture(path, parameters, title, { wide, brushed, scope } = {}) {
  const { kind } = parameters;
  const linked = linkedState(kind), state = { metric: "", x: "", y: "", smooth: 0, hidden: [], ...linked };
  const note = el("p", { class: "note" }), legend = el("div", { class: "legend" }), plot = el("div", { class: "plot" }), tip = el("div", { class: "tip", hidden: "" });
  const controls = el("span", { class: "controls" });
  const node = el("section", { class: `card chart ${wide ? "wide" : ""}`, "data-kind": kind }, el("div", { class: "bar" }, el("h2", {}, title), controls, share()), note, legend, plot, tip);
  let inSight = false, stale = true, listens = false, last, choices = "";
  const columns = () => Math.max(1, Math.floor((plot.clientWidth || 400) / 330));
  // One after the other: drawn into while it is still being drawn, a picture may keep the colours that it had.
  let drawn = Promise.resolve();
  const redraw = () => (drawn = drawn.catch(() => {}).then(() => last?.data && draw(plot, last, state)));
  const fetchIt = paced(async () => {
    if (!inSight || !stale) return 0;
    stale = false;
    try {
      const { of: those = [], ...single } = parameters;
      const wanted = new URLSearchParams({ ...single, columns: columns(), metric: state.metric, x: state.x, where: scope?.() ?? "" });
      for (const each of those) wanted.append("of", each);
      last = await api(path, wanted);
    } catch (error) {
      if (!error.away) note.textContent = error.message;
      return 2000;
    }
    const began = performance.now();
    note.textContent = last.nothing ?? last.note;
    plot.hidden = legend.hidden = Boolean(last.nothing);
    node.hidden = plot.hidden && RARE.has(kind);
    node.classList.toggle("nothing", plot.hidden);
    fillControls();
    fillLegend();
    await redraw();
    if (last.data && !listens) listen();
    return Math.max(1000 * last.pause_s, 10 * (performance.now() - began));
  });
  const again = () => { stale = true; fetchIt(); };

  function listen() {
    listens = true;
    plot.on("plotly_click", ({ points: [point] }) => { if (/^\w{4,}$/.test(point.text ?? "") && parameters.name) location.hash = place("e", parameters.name, point.text); });
    plot.on("plotly_hover", ({ points: [point], event }) => hover(point, event));
    plot.on("plotly_unhover", () => { tip.hidden = true; });
    plot.on("plotly_selected", (event) => { if (brushed && event?.range) { brushed(conditions(last.scales, event.range)); Plotly.restyle(plot, { selectedpoints: [null] }); } });
  }
  const known = new Map();
  async function hover(point, event) {
    const id = point.text ?? "", of = (axis, value) => axis?.ticktext?.[axis.tickvals.indexOf(value)] ?? (typeof value === "number" ? number(value) : value);
    const where = kind === "parallel" || kind === "timeline" ? [] : [`${plain(point.xaxis?.title?.text)} ${of(point.xaxis, point.x)}`, `${plain(point.yaxis?.title?.text)} ${of(point.yaxis, point.y)}`];
    const isTrial = parameters.name && /^\w{4,}$/.test(id);
    const fill = (cells) => tip.replaceChildren(el("b", {}, [isTrial ? `trial ${id}` : plain(id), plain(point.data.name)].filter(Boolean).join(" · ")), ...where.map((line) => el("div", {}, line)), ...cells.map(([key, value]) => el("div", { class: "soft" }, `${key} = ${value}`)));
    tip.hidden = false;
    fill(known.get(id) ?? []);
    move(event);
    if (!isTrial || known.has(id)) return;
    known.set(id, []);
    try {
      const found = await api("trials", { name: parameters.name, trial: id });
      const cells = found.rows[0]?.cells ?? {};
      known.set(id, [...(cells.best ? [["best", cells.best]] : []), ...Object.entries(cells).filter(([key]) => key.startsWith("config.")).slice(0, 12).map(([key, value]) => [key.slice(7), value])]);
      fill(known.get(id));
      move(event);
    } catch { known.delete(id); }
  }
  function move(event) {
    const box = node.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    tip.style.left = `${x > box.width / 2 ? Math.max(0, x - tip.offsetWidth - 12) : x + 12}px`;
    tip.style.top = `${Math.max(0, y - tip.offsetHeight / 2)}px`;
  }

  function fillControls() {
    const offered = JSON.stringify(last.choices ?? {});
    if (offered === choices) return;
    choices = offered;
    const select = (key, options, title) => {
      const names = Object.entries(options);
      const box = el("select", { "aria-label": title, title }, ...names.map(([value, name]) => el("option", { value }, name)));
      box.value = state[key];
      box.addEventListener("change", () => { state[key] = box.value; key === "y" ? redraw() : again(); });
      return box;
    };
    const { metrics = [], x = {} } = last.choices ?? {};
    const smooth = el("input", { type: "range", min: 0, max: 0.95, step: 0.05, "aria-label": "smoothing", title: "smoothing", value: state.smooth });
    smooth.addEventListener("input", () => { state.smooth = Number(smooth.value); redraw(); });
    controls.replaceChildren(
      metrics.length > 1 ? select("metric", Object.fromEntries(metrics), "metric") : "", Object.keys(x).length > 1 ? select("x", x, "horizontal axis") : "",
      SCALED.has(kind) ? select("y", { ...AXES, "": "y axis" }, "vertical axis") : "", SMOOTHED.has(kind) ? el("label", { class: "smooth" }, "smooth", smooth) : "",
    );
  }
  // One legend for all panels; a click hides what it names.
  function fillLegend() {
    const found = new Map();
    for (const trace of last?.data ?? []) if (trace.name && !found.has(groupOf(trace))) found.set(groupOf(trace), trace.marker?.color && trace.mode !== "lines" ? trace.marker.color : (trace.line?.color ?? trace.marker?.color));
    const entries = found.size < 2 ? [] : [...found].map(([name, color]) => {
      const swatch = el("i");
      swatch.style.background = colored(color);
      const toggle = () => { state.hidden = state.hidden.includes(name) ? state.hidden.filter((each) => each !== name) : [...state.hidden, name]; fillLegend(); redraw(); };
      return el("button", { type: "button", class: "key", "aria-pressed": String(!state.hidden.includes(name)), onclick: toggle }, swatch, plain(name));
    });
    legend.replaceChildren(...entries);
  }

  function share() {
    const image = (format) => () => Plotly.downloadImage(plot, { format, filename: `${parameters.name ?? "compared"}-${kind}`, width: plot.clientWidth, height: plot.clientHeight, scale: format === "png" ? 2 : 1 });
    const csv = () => {
      const cell = (value) => (/[",\n]/.test(value) || /^[=+@\t]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
      const rows = (last?.data ?? []).flatMap((trace) => trace.x.map((x, place_) => [plain(trace.name), x, trace.y[place_], plain(trace.text?.[place_] ?? "")])).filter(([, x, y]) => x != null && y != null);
      save(`${parameters.name ?? "compared"}-${kind}.csv`, [["series", "x", "y", "label"], ...rows].map((row) => row.map((each) => cell(String(each))).join(",")).join("\n"), "text/csv");
    };
    const done = el("span", { class: "soft" });
    const link = async () => {
      history.replaceState(null, "", linkOf());
      try { await navigator.clipboard.writeText(location.href); done.textContent = "copied"; } catch { done.textContent = "it is in the address now"; }
    };
    return menu("⋯", { "aria-label": "link and files" }, el("div", { class: "choices" }, button("link", link), done, button("PNG", image("png")), button("SVG", image("svg")), button("CSV", csv)));
  }
  function linkOf() {
    const kept = KEPT.filter((key) => (Array.isArray(state[key]) ? state[key].length : state[key])).map((key) => [key, Array.isArray(state[key]) ? JSON.stringify(state[key]) : state[key]]);
    const where = scope?.() ?? "";
    return `${location.hash.replace(/\?.*/, "")}?${new URLSearchParams([["chart", kind], ...(where ? [["where", where]] : []), ...kept])}`;
  }

  node.seen = (is) => { inSight = is; if (is && stale) fetchIt(); };
  node.changed = () => { stale = true; if (inSight && !document.hidden) fetchIt(); };
  node.linked = Boolean(linked);
  const recolor = () => { fillLegend(); redraw(); };
  dark.addEventListener("change", recolor);
  node.end = () => { seen.unobserve(node); fetchIt.stop(); dark.removeEventListener("change", recolor); Plotly.purge(plot); };
  seen.observe(node);
  return node;
}

// What a link in the address says of a picture of this kind; nothing if it is of another one.
function linkedState(kind) {
  const asked = new URLSearchParams(location.hash.split("?")[1] ?? "");
  if (asked.get("chart") !== kind) return undefined;
  const found = Object.fromEntries(KEPT.filter((key) => asked.has(key)).map((key) => [key, asked.get(key)]));
  if (found.smooth) found.smooth = Math.min(0.95, Math.max(0, Number(found.smooth) || 0));
  try { found.hidden = JSON.parse(found.hidden ?? "[]").map(String); } catch { found.hidden = []; }
  return found;
}

// A text in which the server has escaped what Plotly would take for markup.
const plain = (text) => (text ?? "").replaceAll("<br>", " ").replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");

// A name or a value in a condition; in quotes where the grammar would not read it as one word.
const word = (text) => (/^[\w.+\-/@:]+$/.test(text) && !/^(and|or|not)$/i.test(text) ? text : JSON.stringify(text));

// The conditions that hold for trials which pass through a box on the axes of parallel coordinates; each axis goes from 0 to 1.
function conditions(scales, { x: [left, right], y: [low, high] }) {
  return scales.flatMap(({ key: name, low: from, high: to, is_log: isLog, names }, place_) => {
    if (place_ < Math.min(left, right) || place_ > Math.max(left, right)) return [];
    const key = word(name);
    const [least, most] = [Math.min(low, high), Math.max(low, high)];
    if (names.length) {
      const inside = (name, at) => { const share = names.length > 1 ? at / (names.length - 1) : 0.5; return share >= least && share <= most; };
      const kept = names.filter(inside);
      return kept.length === 1 ? [`${key}=${word(kept[0])}`] : names.filter((name, at) => !inside(name, at)).map((name) => `${key}!=${word(name)}`);
    }
    const at = (share) => Number((isLog ? Math.exp(Math.log(from) + share * (Math.log(to) - Math.log(from))) : from + share * (to - from)).toPrecision(6));
    return [...(least > 0 ? [`${key}>=${at(least)}`] : []), ...(most < 1 ? [`${key}<=${at(most)}`] : [])];
  }).join(" and ");
}
