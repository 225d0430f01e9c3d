// Keyboard shortcuts for pages, tabs and the filter. None of them changes an experiment.
import { button, el } from "./elements.js";
import { dialog } from "./dialogs.js";

const KEPT = "mqtune.letters";
const KEYS = [
  ["/", "filter or search"],
  ["g e", "experiments"],
  ["g f", "fleet"],
  ["1 – 5", "tabs of an experiment"],
  ["↑ ↓ Home End", "rows of a table"],
  ["Space", "select a row; with Shift a range"],
  ["Enter", "open a row"],
  ["Esc", "close, then clear the selection"],
  ["?", "this list"],
];
const GOES_MS = 1000;

const stored = () => {
  try {
    return localStorage.getItem(KEPT) !== "off";
  } catch {
    return true;
  }
};
const keep = (on) => {
  try {
    localStorage.setItem(KEPT, on ? "on" : "off");
  } catch {
    /* The browser stores nothing. The choice is valid until the page is closed. */
  }
};

export function keyboard(opener, open) {
  let letters = stored(),
    goes = 0;
  const help = () => {
    const box = el("input", { type: "checkbox" });
    box.checked = letters;
    box.addEventListener("change", () => {
      letters = box.checked;
      keep(letters);
    });
    const node = dialog("Keyboard", [
      el(
        "dl",
        { class: "keys" },
        KEYS.map(([key, what]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, what)]),
      ),
      el("label", { class: "check" }, box, "use letters and digits as shortcuts"),
      el(
        "div",
        { class: "buttons" },
        button("Close", () => node.close("")),
      ),
    ]);
  };
  opener.addEventListener("click", help);
  document.addEventListener("keydown", (event) => {
    const { key } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (key === "Escape") {
      // An open menu is closed first.
      const opener = document.querySelector("[aria-expanded=true]");
      if (opener) opener.click();
      else open().escape?.();
      return;
    }
    if (!letters || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
    if (performance.now() - goes < GOES_MS && (key === "e" || key === "f")) {
      goes = 0;
      location.hash = key === "e" ? "#/" : "#/fleet";
      return;
    }
    goes = key === "g" ? performance.now() : 0;
    if (key === "?") help();
    else if (key === "/") {
      const box = [...document.querySelectorAll("main input[type=search]")].find((each) => each.offsetParent);
      if (box) {
        event.preventDefault();
        box.focus();
      }
    } else if (/^[1-5]$/.test(key)) document.querySelectorAll(".tabs a")[Number(key) - 1]?.click();
  });
}
