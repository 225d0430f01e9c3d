// The importances of parameters as bars, with the ranges of the best trials. The ranges are shown first, as importances
// may need a package that is not installed.
import { card, el, svg } from "./elements.js";
import { number } from "./format.js";
import { api } from "./server.js";
import { emptyText, watched } from "./chart.js";

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
  let known = [];
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
    const trials = ranges.levels?.trials;
    const merged = ranges.shares.map((each) => ({
      ...each,
      share: known.find(({ name: other }) => other === each.name)?.share ?? null,
    }));
    draw(merged.sort((a, b) => (b.share ?? -1) - (a.share ?? -1)));
    if (!known.length) note.textContent = "computing importances";
    let found;
    try {
      found = await api("picture", { ...wanted, kind: "importances" });
    } catch (error) {
      note.textContent = error.message;
      return 2000;
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
      // Of many trials, some are fitted, and the remarks say how many.
      note.textContent = [
        `share of the variance of ${context.summary?.metrics[0] ?? "the metric"}`,
        ...found.remarks,
        `ranges of the best 20 %${trials ? ` of ${number(trials)} trials` : ""}`,
      ].join(" · ");
    }
    told(known, ranges);
    return Math.max(1000, 1000 * (found.pause_s ?? 0));
  });
  node.forget = () => {
    known = [];
  };
  node.end = () => node.stop();
  return node;
}
