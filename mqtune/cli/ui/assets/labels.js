// Tags and notes of an experiment or a trial, which are edited where they stand if the page may steer.
import { button, el, refill, tag } from "./elements.js";
import { api, me } from "./server.js";
import { answer } from "./steering.js";

export function labels(name, trial = "") {
  const shown = el("div", { class: "labels" }), said = answer(), node = el("div", {}, shown, said);
  let tags = [], notes = "", edits = false;

  const showIt = () => refill(shown, [
    ...tags.map(tag), notes ? el("span", { class: "notes" }, notes) : null,
    me.steer ? el("button", { class: "link", type: "button", onclick: edit }, tags.length || notes ? "edit" : "add tags or notes") : null,
  ]);
  function edit() {
    edits = true;
    const some = el("input", { "aria-label": "tags", placeholder: "tags, with commas between them", value: tags.join(", ") });
    const text = el("textarea", { "aria-label": "notes", placeholder: "notes", rows: 3 });
    text.value = notes;
    const end = () => { edits = false; showIt(); };
    const save = async (event) => {
      event.preventDefault();
      const wanted = some.value.split(",").map((each) => each.trim()).filter(Boolean);
      said.textContent = "…";
      try {
        const added = wanted.filter((each) => !tags.includes(each)), gone = tags.filter((each) => !wanted.includes(each));
        const found = await api("steer", {}, { name, trial, verb: "label", tags: added, untag: gone, notes: text.value === notes ? null : text.value });
        said.textContent = found.done ? "" : found.text;
        if (found.done) [tags, notes] = [wanted, text.value];
        end();
      } catch (error) { said.textContent = error.message; }
    };
    shown.replaceChildren(el("form", { class: "edit", onsubmit: save }, some, text, el("div", { class: "bar" }, el("button", { class: "button main" }, "save"), button("cancel", () => { said.textContent = ""; end(); }))));
    some.focus();
  }
  node.show = (found) => {
    [tags, notes] = [found.tags, found.notes];
    if (!edits) showIt();
  };
  return node;
}
