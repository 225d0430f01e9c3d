// The importances of parameters as bars, with the ranges of the best trials. The ranges are shown first, as they are
// computed quickly.
import { card, el, svg } from "./elements.js";
import { number } from "./format.js";
import { api } from "./server.js";
import { emptyText, watched } from "./chart.js";

const SLOW_MS = 3000;

// Returns the level of an answer in words, such as "at epoch 9".
const levelWords = (levels) =>
  !levels ? "" : levels.shown === "best" ? "at each trial's best" : `at ${levels.unit} ${levels.shown}`;

export const percent = (share) => (share === null || share === undefined ? "" : `${Math.round(100 * share)} %`);

// Returns a card of importances. *at* returns the chosen level, and *told* is called with each answer.
export function importances(
  context,
  { title, link, most = Infinity, at = () => "", metric = () => "", told = () => {} },
) {
  const { name, scope } = context;
  const note = el("p", { class: "note" }),
    rows = el("div", { class: "importances" }),
    node = card(title, { class: "card", controls: link ?? null, "data-kind": "importances" }, note, rows);
  let timer,
    known = [];
  const draw = (shares) => {
    const highest = Math.max(...shares.map(({ share }) => share ?? 0), 0.01);
    rows.replaceChildren(
      ...shares
        .slice(0, most)
        .flatMap(({ name: parameter, share, best, is_at_edge: isAtEdge }) => [
          el("span", { class: "name" }, parameter),
          svg(
            "svg",
            { class: "meter", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
            svg("rect", { x: 0, y: 0, width: (100 * (share ?? 0)) / highest, height: 8 }),
          ),
          el("span", { class: "share" }, percent(share)),
          el(
            "span",
            { class: "range", title: isAtEdge ? "at the edge of the range: the space may be too narrow" : null },
            best,
            isAtEdge ? " (edge)" : "",
          ),
        ]),
    );
  };
  watched(node, async () => {
    const wanted = { name, where: scope?.() ?? "", at: at(), metric: metric() };
    const ranges = await api("picture", { ...wanted, kind: "ranges" });
    if (ranges.nothing) {
      note.textContent = emptyText(ranges.nothing);
      rows.replaceChildren();
      return 2000;
    }
    context.parameters?.(ranges.shares.length);
    const where = levelWords(ranges.levels),
      trials = ranges.levels?.trials;
    const merged = ranges.shares.map((each) => ({
      ...each,
      share: known.find(({ name: other }) => other === each.name)?.share ?? null,
    }));
    draw(merged.sort((a, b) => (b.share ?? -1) - (a.share ?? -1)));
    const began = performance.now();
    clearInterval(timer);
    if (!known.length) {
      const tell = () => {
        const passed = performance.now() - began;
        note.textContent = `computing${trials ? ` from ${number(trials)} trials` : ""}${passed > SLOW_MS ? `, ${Math.round(passed / 1000)} s` : ""}`;
      };
      tell();
      timer = setInterval(tell, 1000);
    }
    let found;
    try {
      found = await api("picture", { ...wanted, kind: "importances" });
    } catch (error) {
      note.textContent = error.message;
      return 2000;
    } finally {
      clearInterval(timer);
    }
    if (found.nothing) {
      known = [];
      draw(ranges.shares);
      note.textContent = emptyText(found.nothing)
        .replace(/^it needs/, "needs")
        .replace(/, and there (are|is) /, "; ")
        .replace(/(; \d+)$/, "$1 have reached it");
    } else {
      known = found.shares;
      draw(known);
      note.textContent = `share of the variance of ${context.summary?.metrics[0] ?? "the metric"} ${where} · ranges of the best 20 %${trials ? ` of ${trials} trials` : ""}`;
    }
    told(known, ranges);
    return Math.max(1000, 1000 * (found.pause_s ?? 0));
  });
  node.forget = () => {
    known = [];
  };
  node.end = () => {
    clearInterval(timer);
    node.stop();
  };
  return node;
}
