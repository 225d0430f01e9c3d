// The strip above the tiles. It is shown only if somebody may have to do something.
import { el, glyph } from "./elements.js";
import { number } from "./format.js";
import { api, poll } from "./server.js";

const MANY_FAILED = 0.1,
  ENOUGH = 10;

// Returns a warning if a high share of the ended trials failed, else null.
function failures({ counts, ended }) {
  const failed = counts.failed ?? 0;
  return ended >= ENOUGH && failed / ended >= MANY_FAILED
    ? { kind: "failed", fact: `${number(failed)} of ${number(ended)} ended trials failed.`, cause: "", way: "" }
    : null;
}

// Returns the reason why the experiment waits as a warning, split into a fact and its cause.
function wait({ text, way_out: way }) {
  const [fact, ...rest] = text.split(/(?<=[^\d]);\s|:\s/);
  return { kind: "", fact: `${fact}${rest.length ? ":" : "."}`, cause: rest.join("; "), way };
}

// Returns the strip. It asks the server for the reason until *end* is called.
export function attention(name) {
  const node = el("div", { class: "attention", role: "status", hidden: "" });
  let why = { text: "" },
    summary;
  const show = () => {
    const warnings = [
      why.is_wrong ? wait(why) : null,
      summary && summary.outcome !== "finished" ? failures(summary) : null,
    ].filter(Boolean);
    const key = JSON.stringify(warnings);
    if (key === node.dataset.key) return;
    node.dataset.key = key;
    node.hidden = !warnings.length;
    if (!warnings.length) {
      node.replaceChildren();
      return;
    }
    const [worst] = warnings,
      more = warnings.length > 1 ? ` and ${warnings.length - 1} more` : "";
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
    show(newSummary) {
      summary = newSummary;
      show();
    },
    get note() {
      return why.is_wrong ? "" : why.text;
    },
  };
}

// Returns a line that says why one trial waits.
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
