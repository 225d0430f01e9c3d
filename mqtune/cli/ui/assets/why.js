// Why a trial, or what an experiment has, waits, and what can be done about it.
import { el } from "./elements.js";
import { api, poll } from "./server.js";

export const because = (found) => [found.text, found.way_out].filter(Boolean).join(" · ");

// A line that says it, empty while nothing waits; and what ends it.
export function reason(parameters) {
  const node = el("p", { class: "why", role: "status" });
  const end = poll(2, async () => {
    try { node.textContent = because(await api("why", parameters)); } catch { node.textContent = ""; }
  });
  return { node, end };
}
