// One experiment: how it stands, its charts, and its trials.
import { el, number, place, progress, refill, status, STATUSES, tile, when } from "./elements.js";
import { me, problem, showState, stream } from "./server.js";
import { labels } from "./labels.js";
import { limitsCard } from "./steering.js";
import { picture } from "./chart.js";
import { reason } from "./why.js";
import { trialTable } from "./trials.js";

const KINDS = {
  history: "Best so far", curves: "Learning curves", parallel: "Parallel coordinates", slices: "Parameters", importances: "Importance",
  rungs: "Rungs", lineage: "Lineage", pareto: "Pareto front", timeline: "Timeline",
};
const WIDE = new Set(["slices", "parallel", "timeline", "lineage"]);
// How long somebody may type before charts follow.
const TYPED_MS = 600;

export function experimentPage(main, name) {
  const tiles = el("div", { class: "tiles" }), about = el("p", { class: "note" }), labelled = labels(name), why = reason({ name });
  const asked = new URLSearchParams(location.hash.split("?")[1] ?? "");
  const stopped = el("input", { type: "checkbox" }), follows = el("input", { type: "checkbox" });
  let running = 0, typed, pictures = [];
  const trials = trialTable(name, () => { clearTimeout(typed); if (follows.checked) typed = setTimeout(again, TYPED_MS); });
  const again = () => pictures.forEach((each) => each.changed());
  // A filter may have an "or", which binds its operands less than an "and".
  const all = (...filters) => { const given = filters.filter(Boolean); return given.length > 1 ? given.map((each) => `(${each})`).join(" and ") : given.join(""); };
  // The filter for the trials in charts.
  const scope = () => (asked.get("where") && !trials.where ? asked.get("where") : all(follows.checked ? trials.where : "", stopped.checked ? "status!=early_stopped" : ""));
  const brushed = (where) => { if (where) trials.filterBy(all(trials.where, where)); };
  [stopped, follows].forEach((each) => each.addEventListener("change", () => { asked.delete("where"); again(); }));
  if (asked.get("where") === "status!=early_stopped") { stopped.checked = true; asked.delete("where"); }
  pictures = Object.entries(KINDS).map(([kind, title]) => picture("picture", { name, kind }, title, { wide: WIDE.has(kind), brushed: kind === "parallel" ? brushed : undefined, scope }));
  const limits = me.steer ? limitsCard(name, () => running) : null;
  const options = el("div", { class: "bar options" }, el("label", {}, stopped, " charts without stopped trials"), el("label", {}, follows, " charts of what the table's filter keeps"));
  main.replaceChildren(
    el("h1", {}, name), why.node, tiles, about, labelled, limits ?? "", options, el("div", { class: "grid" }, pictures.slice(0, 2)), trials.node, el("div", { class: "grid" }, pictures.slice(2)),
  );
  pictures.find((each) => each.linked)?.scrollIntoView({ block: "center" });
  let last = "";
  const end = stream("events", { name }, ({ summary, rows }) => {
    problem(summary.problem);
    showState(summary);
    running = summary.counts.running ?? 0;
    showSummary(summary, tiles, about);
    labelled.show(summary);
    // Its next driver carries out what is asked of one that was interrupted or has failed.
    if (limits) limits.hidden = summary.outcome === "finished";
    const state = JSON.stringify([summary.reports, summary.counts, summary.tags]);
    // A trial's labels change nothing else.
    if (state === last && !rows.length) return;
    trials.changed(rows);
    if (state !== last) again();
    last = state;
  });
  return () => { end(); clearTimeout(typed); why.end(); trials.end(); pictures.forEach((each) => each.end()); };
}

function showSummary(found, tiles, about) {
  const { best, metrics } = found;
  const ahead = best ? [tile(el("a", { href: place("e", found.name, best.trial) }, best.value), `best ${metrics[0]}, trial ${best.trial}`, "best")] : [];
  if (metrics.length > 1) ahead.push(tile(number(found.front), "on the Pareto front", "best"));
  const counts = STATUSES.filter((each) => found.counts[each]).map((each) => tile(number(found.counts[each]), status(each)));
  refill(tiles, [...ahead, tile(number(found.trials), found.planned > found.trials ? `trials of ${number(found.planned)}` : "trials"), tile(number(found.reports), "reports"), ...counts, tile(progress(found), "done")]);
  const config = best ? `best config: ${best.config.map(([key, value]) => `${key}=${value}`).join("  ")}` : "";
  const unread = found.unreadable ? `${found.unreadable} reports can't be read` : "";
  about.textContent = [`started ${when(found.created_at)}${found.owner ? ` by ${found.owner}` : ""}`, found.reason, config, unread].filter(Boolean).join(" · ");
}
