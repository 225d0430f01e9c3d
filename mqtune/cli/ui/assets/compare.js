// Several trials of an experiment, or several experiments, side by side: their curves and their differences.
import { card, el, place, progress, refill, status } from "./elements.js";
import { cellFormat, lasted, number } from "./format.js";
import { api, poll, problem } from "./server.js";
import { picture } from "./chart.js";

export function trialsPage(main, name, ids) {
  const list = el("div"),
    note = el("p", { class: "note" });
  const states = {},
    pictures = [
      ["curves", "Learning curves"],
      ["parallel", "Parallel coordinates"],
    ].map(([kind, title]) => picture("picture", { name, kind, of: ids }, title, { states, wide: true }));
  main.replaceChildren(
    el("div", { class: "head" }, el("h1", {}, el("a", { href: place("e", name) }, name), ` / ${ids.length} trials`)),
    el("div", { class: "stack" }, pictures, card("Side by side", {}, note, list)),
  );
  const end = poll(5, async () => {
    const wanted = new URLSearchParams({ name });
    ids.forEach((id) => wanted.append("trial", id));
    let found;
    try {
      found = await api("trials", wanted);
    } catch (error) {
      if (!error.away) problem(error.message);
      return;
    }
    const lines = found.columns
      .filter(({ key }) => key !== "curve")
      .map((column) => {
        const values = found.rows.map((row) => row.cells[column.key]);
        return [column.title, values.map(cellFormat(column, values))];
      })
      .filter(([, values]) => values.some(Boolean));
    sideBySide(
      list,
      ["trial", ...found.rows.map((row) => el("a", { href: place("e", name, row.id) }, row.id))],
      [["status", found.rows.map((row) => status(row.status))], ...lines],
    );
    note.textContent = found.rows.length < ids.length ? `${ids.length - found.rows.length} of them are missing` : "";
  });
  return {
    end: () => {
      end();
      pictures.forEach((each) => each.end());
    },
  };
}

export function comparePage(main, names) {
  const list = el("div"),
    of = names,
    states = {};
  const pictures = [
    ["runs", "Best over time"],
    ["bests", "Learning curve of the best trial"],
    ["parameters", "Parameters"],
  ].map(([kind, title]) => picture("compared", { kind, of }, title, { states, wide: kind === "parameters" }));
  main.replaceChildren(
    el("div", { class: "head" }, el("h1", {}, names.join(", "))),
    el("div", { class: "stack" }, el("div", { class: "pair" }, pictures), card("Side by side", {}, list)),
  );
  const end = poll(5, async () => {
    const wanted = new URLSearchParams();
    names.forEach((each) => wanted.append("of", each));
    let found;
    try {
      found = (await api("summaries", wanted)).experiments;
    } catch (error) {
      if (!error.away) problem(error.message);
      return;
    }
    const parameters = [...new Set(found.flatMap((each) => (each.best?.config ?? []).map(([key]) => key)))];
    sideBySide(
      list,
      ["", ...found.map((each) => el("a", { href: place("e", each.name) }, each.name))],
      [
        ["state", found.map((each) => each.state)],
        ["search", found.map((each) => each.searcher || "none")],
        ["stopping", found.map((each) => [each.scheduler, each.range].filter(Boolean).join(" ") || "none")],
        ["owner", found.map((each) => each.owner)],
        [
          "progress",
          found.map((each) =>
            el(
              "span",
              { class: "bar" },
              progress(each),
              `${number(each.ended)} of ${number(Math.max(each.planned ?? 0, each.trials))}`,
            ),
          ),
        ],
        ["duration", found.map((each) => (each.ran_s ? lasted(each.ran_s) : ""))],
        ["reports", found.map((each) => number(each.reports))],
        ["best", found.map((each) => (each.best ? `${each.metrics[0]} = ${each.best.value}` : ""))],
        [
          "best trial",
          found.map((each) =>
            each.best ? el("a", { href: place("e", each.name, each.best.trial) }, each.best.trial) : "",
          ),
        ],
        ...parameters.map((key) => [
          `best config: ${key}`,
          found.map((each) => Object.fromEntries(each.best?.config ?? [])[key] ?? ""),
        ]),
        ["tags", found.map((each) => each.tags.join(", "))],
        ["notes", found.map((each) => each.notes)],
      ],
    );
  });
  return {
    end: () => {
      end();
      pictures.forEach((each) => each.end());
    },
  };
}

// Shows a table with a column for each trial or experiment. Lines that differ come first. Equal lines are folded.
function sideBySide(list, heads, lines) {
  const texts = (values) => new Set(values.map((each) => (each instanceof Element ? each.textContent : each)));
  const filled = lines.filter(([, values]) => values.some((each) => each instanceof Element || each));
  const differ = filled.filter(([, values]) => texts(values).size > 1),
    equal = filled.filter(([, values]) => texts(values).size === 1);
  const rows = (some, kind) =>
    some.map(([title, values]) =>
      el(
        "tr",
        { class: kind },
        el("td", {}, title),
        values.map((each) => el("td", { class: "wrap" }, each)),
      ),
    );
  const head = el(
    "thead",
    {},
    el(
      "tr",
      {},
      heads.map((each) => (each ? el("th", { scope: "col" }, each) : el("td", {}))),
    ),
  );
  const isOpen = list.querySelector("details")?.open;
  const region = (label, ...parts) =>
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, el("table", {}, ...parts));
  const folded = equal.length
    ? el(
        "details",
        { open: isOpen ? "" : null },
        el("summary", { class: "soft" }, `${number(equal.length)} equal`),
        region("equal", el("tbody", {}, rows(equal))),
      )
    : null;
  refill(list, [region("different", head, el("tbody", {}, rows(differ, "differs"))), folded]);
}
