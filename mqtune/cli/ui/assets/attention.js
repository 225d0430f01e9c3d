// The strip above the tiles. It appears only if somebody may have to act.
import { el, glyph } from "./elements.js";
import { number } from "./format.js";
import { api, poll } from "./server.js";

const MANY_FAILED = 0.1,
  ENOUGH = 10;

// A fault of the summary itself: a high share of failed trials.
function failures({ counts, ended }) {
  const failed = counts.failed ?? 0;
  return ended >= ENOUGH && failed / ended >= MANY_FAILED
    ? { kind: "failed", fact: `${number(failed)} of ${number(ended)} ended trials failed.`, cause: "", way: "" }
    : null;
}

function wait({ text, way_out: way }) {
  const [fact, ...rest] = text.split(/(?<=[^\d]);\s|:\s/);
  return { kind: "", fact: `${fact}${rest.length ? ":" : "."}`, cause: rest.join("; "), way };
}

// Returns the strip, which asks for the reason while the page is open.
export function attention(name) {
  const node = el("div", { class: "attention", role: "status", hidden: "" });
  let why = { text: "" },
    summary;
  const show = () => {
    const found = [
      why.is_wrong ? wait(why) : null,
      summary && summary.outcome !== "finished" ? failures(summary) : null,
    ].filter(Boolean);
    const key = JSON.stringify(found);
    if (key === node.dataset.key) return;
    node.dataset.key = key;
    node.hidden = !found.length;
    if (!found.length) {
      node.replaceChildren();
      return;
    }
    const [worst] = found,
      more = found.length > 1 ? ` and ${found.length - 1} more` : "";
    node.className = `attention ${worst.kind}`;
    const [words, code] = /^(.*?:)?\s*(mqtune .*)$/.exec(worst.way)?.slice(1) ?? [worst.way, ""];
    const link = /mqtune fleet/.test(code ?? "")
      ? el("a", { href: "#/fleet" }, "Open fleet")
      : [words ?? "", " ", code ? el("code", {}, code) : ""];
    node.replaceChildren(
      glyph(worst.kind || "waiting"),
      el("span", {}, el("b", {}, worst.fact), ` ${worst.cause}${more}`),
      el("span", { class: "push" }, link),
    );
  };
  const end = poll(2, async () => {
    try {
      why = await api("why", { name });
    } catch {
      why = { text: "" };
    }
    show();
  });
  return {
    node,
    end,
    show(found) {
      summary = found;
      show();
    },
    get note() {
      return why.is_wrong ? "" : why.text;
    },
  };
}

// A line that says why one trial waits.
export function reason(parameters) {
  const node = el("p", { class: "note", role: "status" });
  const end = poll(2, async () => {
    try {
      const found = await api("why", parameters);
      node.textContent = [found.text, found.way_out].filter(Boolean).join(" · ");
    } catch {
      node.textContent = "";
    }
  });
  return { node, end };
}
