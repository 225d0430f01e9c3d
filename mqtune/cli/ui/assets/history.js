// The tab of the log: the events of an experiment in words, the newest first.
import { el, glyph, place, refill } from "./elements.js";
import { exact, number } from "./format.js";
import { api, paced } from "./server.js";

const KINDS = {
  "": "All",
  trials: "Trials",
  stops: "Stops",
  failures: "Failures",
  people: "People",
  drivers: "Drivers",
};
const FASTEST_MS = 2000;

export function historyTab({ name }) {
  let kind = "";
  const segments = el("div", { class: "segments", role: "group", "aria-label": "kinds of events" }),
    note = el("p", { class: "note" }),
    body = el("tbody");
  const pane = el(
    "section",
    { class: "card table", "aria-label": "log" },
    el(
      "table",
      { class: "lines" },
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          ["time", "event"].map((title) => el("th", { scope: "col" }, title)),
        ),
      ),
      body,
    ),
  );
  const clock = (at) =>
    new Date(at * 1000).toLocaleString(undefined, {
      month: "short",
      day: "numeric",
      hour: "2-digit",
      minute: "2-digit",
      second: "2-digit",
      hourCycle: "h23",
    });
  const fetchIt = paced(async () => {
    const asked = kind,
      found = await api("history", { name, kind });
    if (asked !== kind) return 0;
    note.textContent =
      found.total > found.lines.length
        ? `the newest ${number(found.lines.length)} of ${number(found.total)} lines`
        : found.total
          ? ""
          : "there are no events of this kind";
    refill(
      body,
      found.lines.map((line) =>
        el(
          "tr",
          {},
          el("td", { class: "when", title: exact(line.at) }, clock(line.at)),
          el(
            "td",
            { class: "wrap" },
            el(
              "span",
              { class: "state" },
              glyph(line.state),
              line.trial ? el("a", { href: place("e", name, line.trial) }, line.trial) : null,
            ),
            " ",
            line.text,
          ),
        ),
      ),
    );
    return FASTEST_MS;
  });
  const fill = () =>
    segments.replaceChildren(
      ...Object.entries(KINDS).map(([key, title]) =>
        el(
          "button",
          {
            type: "button",
            "aria-pressed": String(key === kind),
            onclick: () => {
              kind = key;
              fill();
              fetchIt();
            },
          },
          title,
        ),
      ),
    );
  fill();
  fetchIt();
  return {
    nodes: [el("div", { class: "bar" }, segments, note), pane],
    show() {},
    changed: () => fetchIt(),
    end: () => fetchIt.stop(),
  };
}
