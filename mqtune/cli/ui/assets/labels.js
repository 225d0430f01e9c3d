// Tags and notes of an experiment or a trial. Notes are Markdown.
import { button, el, plain, refill, tag } from "./elements.js";
import { api, me } from "./server.js";
import { dialog, toast } from "./dialogs.js";
import { markdown } from "./markdown.js";

// Returns two elements: the tags with an edit button, for the head of a page, and the notes, for below the head.
export function labels(name, trial = "") {
  const tags = el("span", { class: "bar" }),
    notes = el("div", { class: "notes" });
  let now = { tags: [], notes: "" };

  function edit() {
    const some = el("input", {
      type: "text",
      "aria-label": "tags",
      placeholder: "tags, with commas between them",
      value: now.tags.join(", "),
    });
    const text = el("textarea", { "aria-label": "notes", placeholder: "notes, in Markdown", rows: 8 }),
      shown = el("div", { class: "notes" });
    text.value = now.notes;
    const preview = () => shown.replaceChildren(...markdown(text.value));
    text.addEventListener("input", preview);
    preview();
    const save = async () => {
      const wanted = some.value
          .split(",")
          .map((each) => each.trim())
          .filter(Boolean),
        before = now;
      node.close("");
      try {
        const found = await api(
          "steer",
          {},
          {
            name,
            trial,
            verb: "label",
            tags: wanted.filter((each) => !before.tags.includes(each)),
            untag: before.tags.filter((each) => !wanted.includes(each)),
            notes: text.value === before.notes ? null : text.value,
          },
        );
        if (found.done) show({ tags: wanted, notes: text.value });
        else toast(found.text);
      } catch (error) {
        toast(error.message);
      }
    };
    const node = dialog(`Tags and notes of ${trial ? `trial ${trial}` : name}`, [
      el("label", { class: "field" }, "tags", some),
      el("label", { class: "field" }, "notes", text),
      shown,
      el(
        "div",
        { class: "buttons" },
        button("Cancel", () => node.close("")),
        button("Save", save, { class: "button primary" }),
      ),
    ]);
    some.focus();
  }
  function show(found) {
    const key = JSON.stringify([found.tags, found.notes]);
    if (tags.dataset.key === key) return;
    tags.dataset.key = key;
    now = { tags: found.tags, notes: found.notes };
    refill(tags, [
      ...now.tags.map(tag),
      me.steer
        ? plain(now.tags.length || now.notes ? "edit" : "add tags or notes", edit, { class: "plain quiet" })
        : null,
    ]);
    notes.replaceChildren(...markdown(now.notes));
    notes.hidden = !now.notes;
  }
  return { tags, notes, show, edit };
}
