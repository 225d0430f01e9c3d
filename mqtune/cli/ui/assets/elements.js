// Functions that make the page's elements. Values of trials become text nodes, and never HTML.
import { number } from "./format.js";

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
  node.append(...children.flat(2).filter((each) => each != null && each !== false));
  return node;
}

// Replaces the children of an element. Children that are equal stay, so that a click on one of them is not lost.
export function refill(node, children) {
  const wanted = children.filter((each) => each);
  wanted.forEach((child, index) => {
    const old = node.children[index];
    if (!old) node.append(child);
    else if (old.isEqualNode(child)) return;
    else if (
      old.tagName === "TR" &&
      old.dataset.id &&
      old.dataset.id === child.dataset.id &&
      old.className === child.className
    )
      refill(old, [...child.children]);
    else old.replaceWith(child);
  });
  while (node.children.length > wanted.length) node.lastElementChild.remove();
}

export const place = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;
export const button = (text, onclick, attributes) =>
  el("button", { class: "button", type: "button", onclick, ...attributes }, text);
export const plain = (text, onclick, attributes) =>
  el("button", { class: "plain", type: "button", onclick, ...attributes }, text);
export const tag = (text) => el("span", { class: "tag" }, text);

// Returns a card with its title, and controls at the right of the title.
export function card(title, attributes, ...children) {
  const { controls, level = "h2", ...others } = attributes ?? {};
  const head = el(
    "div",
    { class: "title" },
    el(level, {}, title),
    controls ? el("div", { class: "controls" }, controls) : null,
  );
  return el("section", { class: "card", "aria-label": title, ...others }, head, ...children);
}

const WORDS = { early_stopped: "stopped early" };
export const words = (status) => WORDS[status] ?? status.replaceAll("_", " ");

// Returns the kind of an experiment's state, such as "waiting" for "driver away for 3 min".
export function kindOf({ error, state = "" }) {
  if (error) return "unreadable";
  if (/^(waiting|driver away)/.test(state)) return "waiting";
  return state.startsWith("its script") ? "queued" : state;
}

const circle = (r, kind) => svg("circle", { cx: 5, cy: 5, r, class: kind });
const GLYPHS = {
  running: () => [circle(4.2, "ring"), svg("path", { d: "M5 .8a4.2 4.2 0 0 1 0 8.4z", class: "fill" })],
  completed: () => [circle(4.8, "fill")],
  early_stopped: () => [circle(4.2, "ring"), svg("path", { d: "M3 5h4", class: "ring" })],
  queued: () => [circle(4.3, "thin")],
  waiting: () => [circle(4, "dots")],
  paused: () => [svg("path", { d: "M1.5 1h2.6v8H1.5zM5.9 1h2.6v8H5.9z", class: "fill" })],
  failed: () => [svg("path", { d: "M5 .6 9.8 9.4H.2z", class: "fill" })],
  interrupted: () => [svg("path", { d: "M5 .8 9.2 5 5 9.2.8 5z", class: "ring" })],
  best: () => [
    svg("path", { d: "M5 .2 6.5 3.4 10 3.8 7.4 6.2 8.1 9.7 5 8 1.9 9.7 2.6 6.2 0 3.8 3.5 3.4z", class: "fill" }),
  ],
};
const SAME = { finished: "completed", abandoned: "failed", unreadable: "failed", candidate: "queued" };

// Returns the mark of a state. It is shown beside the state's name.
export const glyph = (kind) =>
  svg(
    "svg",
    { class: `glyph ${kind}`, viewBox: "0 0 10 10", "aria-hidden": "true" },
    (GLYPHS[SAME[kind] ?? kind] ?? GLYPHS.queued)(),
  );
export const status = (kind, text = words(kind)) => el("span", { class: "state" }, glyph(kind), text);
export const star = () => el("span", { class: "starred", title: "the best" }, glyph("best"));

const PARTS = ["completed", "early_stopped", "failed", "abandoned", "paused", "running", "queued"];

// Returns a bar with the trials by status. Its whole length stands for the planned trials.
export function progress({ counts = {}, planned, trials = 0 }) {
  const all = Math.max(planned ?? 0, trials) || 1;
  let from = 0;
  const parts = PARTS.filter((each) => counts[each]).flatMap((each) => {
    const width = (100 * counts[each]) / all,
      x = from;
    from += width;
    return [
      svg("rect", { x, y: 0, width, height: 8, class: each }),
      x > 0 ? svg("rect", { x: x - 0.4, y: 0, width: 0.8, height: 8, class: "gap" }) : null,
    ];
  });
  const text =
    PARTS.filter((each) => counts[each])
      .map((each) => `${number(counts[each])} ${words(each)}`)
      .join(", ") || "no trial";
  return el(
    "span",
    { class: "progress", title: text },
    svg("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img", "aria-label": text }, ...parts),
  );
}

// Returns a small line through values, without axes, with a dot at its end.
export function sparkline(values, kind = "") {
  const finite = values
    .map((value, index) => [index, value])
    .filter(([, value]) => typeof value === "number" && Number.isFinite(value));
  if (finite.length < 2) return null;
  const ys = finite.map(([, value]) => value),
    low = Math.min(...ys),
    span = Math.max(...ys) - low || 1;
  const points = finite.map(([index, value]) => [
    ((66 * index) / (values.length - 1) + 2).toFixed(1),
    (18 - (16 * (value - low)) / span).toFixed(1),
  ]);
  const [x, y] = points.at(-1);
  return svg(
    "svg",
    { class: `spark ${kind}`, viewBox: "0 0 72 20", "aria-hidden": "true" },
    svg("polyline", { points: points.map((each) => each.join(",")).join(" ") }),
    svg("circle", { cx: x, cy: y, r: 2 }),
  );
}

// Returns a table. A cell is an element or a text. A head is a text, or [text, "right"] for a column of numbers.
export function table(heads, rows, attributes) {
  const titles = heads.map((head) => (Array.isArray(head) ? head : [head, null]));
  const cellOf = (cell, index) =>
    cell instanceof Element && cell.tagName === "TD" ? cell : el("td", { class: titles[index]?.[1] }, cell ?? "");
  const body = rows.map((cells) => el("tr", {}, cells.map(cellOf)));
  return el(
    "div",
    {
      class: "scroll",
      tabindex: "0",
      role: "region",
      "aria-label":
        titles
          .map(([title]) => title)
          .filter(Boolean)
          .join(", ") || "table",
      ...attributes,
    },
    el(
      "table",
      {},
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          titles.map(([title, kind]) => el("th", { scope: "col", class: kind }, title)),
        ),
      ),
      el("tbody", {}, body),
    ),
  );
}

// Returns a button that opens a menu. An item is [text, action, hint], an element, or null for a separator. An item
// without an action is disabled, and its hint is the reason.
export function menu(name, items, { label, side = "", kind = "button caret" } = {}) {
  const box = Object.assign(el("span", { class: "menu" }), { items });
  let popup;
  // The document has this listener only while the menu is open, as pages often replace their menus.
  const outside = (event) => {
    if (!box.contains(event.target)) close(false);
  };
  const close = (refocus) => {
    popup?.remove();
    popup = undefined;
    opener.setAttribute("aria-expanded", "false");
    document.removeEventListener("pointerdown", outside);
    if (refocus) opener.focus();
  };
  const itemOf = (item) => {
    if (!item) return el("hr", {});
    if (item instanceof Element) return item;
    const [text, action, hint] = item;
    return el(
      "button",
      {
        class: "item",
        type: "button",
        "aria-disabled": action ? null : "true",
        title: action ? null : hint,
        onclick: () => {
          if (action) {
            close(true);
            action();
          }
        },
      },
      text,
      el("span", {}, hint ?? ""),
    );
  };
  const open = () => {
    popup = el("div", { class: `popup ${side}` }, (typeof items === "function" ? items() : items).map(itemOf));
    opener.setAttribute("aria-expanded", "true");
    document.addEventListener("pointerdown", outside);
    box.append(popup);
    popup.querySelector(".item, input")?.focus();
  };
  const opener = el(
    "button",
    {
      class: kind,
      type: "button",
      "aria-expanded": "false",
      "aria-label": label,
      onclick: () => (popup ? close(true) : open()),
    },
    name,
  );
  box.addEventListener("keydown", (event) => {
    if (!popup) return;
    if (event.key === "Escape") {
      event.stopPropagation();
      close(true);
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = [...popup.querySelectorAll(".item, input")];
    all[(all.indexOf(document.activeElement) + step + all.length) % all.length]?.focus();
  });
  box.addEventListener("focusout", (event) => {
    if (popup && event.relatedTarget && !box.contains(event.relatedTarget)) close(false);
  });
  box.append(opener);
  return box;
}

// Returns an inconspicuous select box with its name.
export function quietSelect(name, options, value, changed) {
  const box = el(
    "select",
    { "aria-label": name },
    Object.entries(options).map(([key, text]) => el("option", { value: key }, text)),
  );
  box.value = value;
  box.addEventListener("change", () => changed(box.value));
  return el("label", { class: "quiet-select" }, name, box);
}

// Returns buttons and menus for wide screens, and one menu with all their items for phones.
export function collapsible(parts, label) {
  const items = parts.flatMap((part) => part.items ?? [[part.textContent, () => part.click()]]);
  return items.length
    ? [
        el("span", { class: "actions seldom" }, parts),
        el("span", { class: "phone" }, menu("⋯", items, { label, kind: "button dots" })),
      ]
    : [];
}

// Returns a shell command with a button that copies it.
export function command(text) {
  const done = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(text);
      done.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
    }
  });
  const code = el("code", {}, text);
  return el("span", { class: "bar" }, code, done);
}

// Saves a text as a file.
export function save(file, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: file }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
