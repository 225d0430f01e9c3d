// The tab of the schedule: rungs, the timeline of attempts, and the lineage of trials.
import { el } from "./elements.js";
import { chartLink, picture } from "./chart.js";

export function scheduleTab(context) {
  const { name, states, scope } = context;
  const link = (chart) => chartLink(chart, states, context.linked());
  const charts = [
    ["rungs", "Rungs"],
    ["timeline", "Timeline"],
    ["lineage", "Lineage"],
  ].map(([kind, title]) =>
    picture("picture", { name, kind }, title, { states, scope, link, wide: kind === "lineage" }),
  );
  return {
    nodes: [el("div", { class: "pair loose" }, charts)],
    show() {},
    changed: (rows, isNew) => {
      if (isNew) charts.forEach((each) => each.changed());
    },
    again: () => charts.forEach((each) => each.changed()),
    end: () => charts.forEach((each) => each.end()),
  };
}
