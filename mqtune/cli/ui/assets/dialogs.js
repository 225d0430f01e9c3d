// Dialogs with questions, and short messages in a corner of the page.
import { button, el } from "./elements.js";

const SHOWN_MS = 8000;

// Opens a dialog, and returns it. When it is closed, the element that had the focus has it again.
export function dialog(title, children, { kind = "", closed = () => {} } = {}) {
  const opener = document.activeElement;
  const node = el(
    "dialog",
    { class: kind, "aria-labelledby": "dialog-title" },
    el("h2", { id: "dialog-title" }, title),
    children,
  );
  node.addEventListener("close", () => {
    node.remove();
    opener?.focus?.();
    closed(node.returnValue);
  });
  // A click beside the dialog cancels it.
  node.addEventListener("pointerdown", (event) => {
    const box = node.getBoundingClientRect();
    if (
      event.target === node &&
      (event.clientX < box.left || event.clientX > box.right || event.clientY < box.top || event.clientY > box.bottom)
    )
      node.close("");
  });
  document.body.append(node);
  node.showModal();
  return node;
}

// Asks a question. Resolves to the value of the chosen option ("yes" if there are no options), or to undefined if the
// user cancels.
export function sure(title, lines, { yes, no = "Cancel", danger = false, options = [], name = "" }) {
  return new Promise((answered) => {
    const choices = options.map(([value, text, effect], index) =>
      el(
        "label",
        { class: "choice" },
        el("input", { type: "radio", name: "choice", value, checked: index ? null : "" }),
        text,
        el("small", {}, effect),
      ),
    );
    const chosen = () => node.querySelector("input[name=choice]:checked")?.value ?? "yes";
    const safe = button(no, () => node.close(""), { autofocus: "" });
    const node = dialog(
      title,
      [
        ...lines.filter(Boolean).map((line) => el("p", {}, line)),
        choices.length ? el("fieldset", {}, name ? el("legend", {}, name) : null, choices) : null,
        el(
          "div",
          { class: "buttons" },
          safe,
          button(yes, () => node.close(chosen()), { class: `button ${danger ? "danger filled" : "primary"}` }),
        ),
      ],
      { closed: (value) => answered(value || undefined) },
    );
    safe.focus();
  });
}

const corner = el("div", { class: "toasts", role: "status", "aria-label": "answers" });
document.body.append(corner);

// Shows a message for some seconds. *action* is the text of a button in it, and its function.
export function toast(text, action) {
  const node = el(
    "div",
    { class: "toast" },
    el("span", {}, text),
    action
      ? el(
          "button",
          {
            class: "plain",
            type: "button",
            onclick: () => {
              node.remove();
              action[1]();
            },
          },
          action[0],
        )
      : null,
  );
  corner.append(node);
  let timer = setTimeout(() => node.remove(), SHOWN_MS);
  node.addEventListener("pointerenter", () => clearTimeout(timer));
  node.addEventListener("pointerleave", () => {
    timer = setTimeout(() => node.remove(), SHOWN_MS);
  });
  return node;
}
