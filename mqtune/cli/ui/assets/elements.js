// Elements of the page, and values as text. Whatever a trial may have chosen is put in as text alone: there is no innerHTML here.

export function el(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

const SVG = "http://www.w3.org/2000/svg";
export const svg = (tag, attributes, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((each) => each != null));
  return node;
}

// Puts children in place of those that an element has; those that are alike stay, so that a click on one is not lost.
export function refill(node, children) {
  const wanted = children.filter((each) => each);
  wanted.forEach((child, place_) => {
    const old = node.children[place_];
    if (!old) node.append(child);
    else if (old.isEqualNode(child)) return;
    else if (old.tagName === "TR" && old.dataset.id === child.dataset.id) refill(old, [...child.children]);
    else old.replaceWith(child);
  });
  while (node.children.length > wanted.length) node.lastElementChild.remove();
}

export const card = (title, ...children) => el("section", { class: "card" }, title && el("h2", {}, title), ...children);
export const words = (text) => text.replaceAll("_", " ");
export const status = (text) => el("span", { class: `status ${text}` }, words(text));
export const number = (value) => (typeof value === "number" ? (Number.isInteger(value) ? value.toLocaleString("en") : String(+value.toPrecision(4))) : String(value ?? ""));
export const counted = (count, thing) => `${number(count)} ${thing}${count === 1 ? "" : "s"}`;
export const when = (at) => (at ? new Date(at * 1000).toLocaleString() : "");
export const place = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;
export const tile = (value, name, kind) => el("div", { class: `tile ${kind ?? ""}` }, el("b", {}, value), el("span", {}, name));
export const button = (text, onclick, attributes) => el("button", { class: "button", type: "button", onclick, ...attributes }, text);
export const tag = (text) => el("span", { class: "tag" }, text);

export function lasted(seconds) {
  if (seconds < 60) return `${Math.max(0, seconds).toFixed(0)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${String(Math.floor(seconds % 60)).padStart(2, "0")} s`;
  return minutes < 1440 ? `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min` : `${Math.floor(minutes / 1440)} d ${Math.floor(minutes / 60) % 24} h`;
}

export function table(heads, rows) {
  const body = rows.map((cells) => el("tr", {}, cells.map((cell) => (cell instanceof Element && cell.tagName === "TD" ? cell : el("td", {}, cell ?? "")))));
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, heads.map((head) => el("th", {}, head)))), el("tbody", {}, body)));
}

// Something that opens below its name, and closes when another place is clicked.
export const menu = (name, attributes, ...children) => el("details", { class: "menu", ...attributes }, el("summary", { class: "button" }, name), el("div", { class: "card" }, ...children));
addEventListener("click", (event) => document.querySelectorAll("details.menu[open]").forEach((each) => { if (!each.contains(event.target)) each.open = false; }));

const PARTS = ["completed", "early_stopped", "failed", "abandoned", "paused", "running"];

// How many trials have each status, of all that are planned, as a bar.
export function progress({ counts, ended, planned, trials }) {
  const all = Math.max(planned ?? 0, trials);
  const text = `${number(ended)} of ${number(all)}`;
  let from = 0;
  const parts = PARTS.filter((each) => counts[each]).map((each) => {
    const width = (100 * counts[each]) / all, x = from;
    from += width;
    return svg("rect", { x, y: 0, width, height: 6, class: each });
  });
  const told = STATUSES.filter((each) => counts[each]).map((each) => `${number(counts[each])} ${words(each)}`).join(", ");
  return el("span", { class: "progress", title: told }, svg("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", role: "img", "aria-label": told }, svg("rect", { x: 0, y: 0, width: 100, height: 6, class: "rest" }), ...parts), el("span", {}, text));
}

export const STATUSES = ["running", "completed", "early_stopped", "paused", "failed", "abandoned", "queued"];

// A small line through values, without axes.
export function sparkline(values) {
  if (values.length < 2) return null;
  const low = Math.min(...values), span = Math.max(...values) - low || 1;
  const points = values.map((value, place_) => `${((98 * place_) / (values.length - 1) + 1).toFixed(1)},${(22 - (20 * (value - low)) / span).toFixed(1)}`);
  return svg("svg", { class: "spark", viewBox: "0 0 100 24", "aria-hidden": "true" }, svg("polyline", { points: points.join(" ") }));
}

// Saves a text as a file.
export function save(file, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: file }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
