// The list of experiments, in groups by urgency. The browser searches, sorts and filters it, as it is short.
import {
  button,
  command,
  el,
  glyph,
  kindOf,
  menu,
  place,
  plain,
  progress,
  refill,
  sparkline,
  tag,
} from "./elements.js";
import { ARROWS, about, ago, columnFormat, exact, isVirtual, lasted, number } from "./format.js";
import { api, poll, problem } from "./server.js";

const DAY_S = 86400,
  MOST_ASKED = 3;
const ENOUGH = 10;
const HEADS = [
  ["name", "name", (each) => each.name, "name"],
  ["state", "state", (each) => each.error ?? each.state, "status"],
  [
    "progress",
    "progress",
    (each) => each.progress?.ended / Math.max(1, each.progress?.planned ?? 0, each.trials ?? 0),
    "made",
  ],
  ["", "", undefined, "right count"],
  ["failed", "failed", (each) => each.statuses?.failed, "right seldom"],
  ["best", "best", (each) => each.best, "right best"],
  ["metric", "metric", (each) => each.metric, "metric"],
  ["", "best over time", undefined, "seldom"],
  ["duration", "duration", ranFor, "right seldom"],
  ["started", "started", (each) => each.created_at, "right seldom"],
  ["owner", "owner", (each) => each.owner ?? "", "seldom"],
];

const isLive = (each) => !each.error && !["finished", "failed", "interrupted"].includes(each.state);

function ranFor(each) {
  const { created_at: began, progress: made } = each;
  if (!began || !made) return undefined;
  return Math.max(
    0,
    (isLive(each) && !isVirtual(began) && !/^driver away/.test(each.state) ? Date.now() / 1000 : made.updated_at) -
      began,
  );
}

// Returns the estimated seconds until all planned trials have ended, at the average speed so far, or undefined.
function left({ progress: made, state, created_at: began }) {
  if (
    state !== "running" ||
    !made?.planned ||
    made.ended < ENOUGH ||
    made.planned <= made.ended ||
    made.updated_at <= began
  )
    return undefined;
  return ((made.planned - made.ended) * (made.updated_at - began)) / made.ended;
}

const GROUPS = ["Needs attention", "Running", "Finished"];
// Returns the group of an experiment. A failure needs attention for a day.
function groupOf(each) {
  const kind = kindOf(each),
    isNew =
      isVirtual(each.created_at) || Date.now() / 1000 - (each.progress?.updated_at ?? each.created_at ?? 0) < DAY_S;
  if (["waiting", "unreadable"].includes(kind) || (["failed", "interrupted"].includes(kind) && isNew)) return 0;
  return isLive(each) ? 1 : 2;
}

export function experimentsPage(main) {
  const asked = new URLSearchParams(location.hash.split("?")[1] ?? "");
  const state = Object.fromEntries(["q", "owner", "state", "tag", "sort"].map((key) => [key, asked.get(key) ?? ""]));
  let reverse = asked.has("reverse"),
    all = [],
    isLoaded = false;
  const selected = new Set(),
    reasons = new Map();
  const search = el("input", {
    type: "search",
    class: "search",
    placeholder: "Search name, tag, note, owner",
    "aria-label": "search",
    value: state.q,
  });
  const filters = el("span", { class: "bar" }),
    head = el("tr"),
    body = el("tbody"),
    total = el("span", { class: "soft" }),
    none = el("div", { class: "nothing", hidden: "" });
  const picked = el("div", { class: "selection", role: "toolbar", "aria-label": "selected experiments", hidden: "" });
  const order = el("span", { class: "push" });
  const foot = el(
    "div",
    { class: "foot" },
    ["completed", "early_stopped", "failed", "running", "waiting"].map((each) =>
      el("span", { class: "state" }, glyph(each), { early_stopped: "stopped early" }[each] ?? each),
    ),
    order,
  );
  const list = el(
    "section",
    { class: "card table", "aria-label": "experiments" },
    el(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "experiments" },
      el("table", { class: "experiments rows" }, el("thead", {}, head), body),
    ),
    none,
  );
  main.replaceChildren(
    el(
      "div",
      { class: "head" },
      el("h1", {}, "Experiments"),
      total,
      el("span", { class: "bar push" }, search, filters),
    ),
    el("div", { class: "stack" }, list),
    foot,
    picked,
  );

  function keep() {
    const found = new URLSearchParams(Object.entries(state).filter(([, value]) => value));
    if (reverse) found.set("reverse", "");
    history.replaceState(null, "", `#/${String(found) ? `?${found}` : ""}`);
    draw();
  }
  search.addEventListener("input", () => {
    state.q = search.value;
    keep();
  });

  let offered = "";
  function fillFilters() {
    const values = {
      state: [...new Set(all.map(kindOf))],
      owner: [...new Set(all.map((each) => each.owner ?? "").filter(Boolean))],
      tag: [...new Set(all.flatMap((each) => each.tags ?? []))],
    };
    const key = JSON.stringify([values, state]);
    if (key === offered) return;
    offered = key;
    refill(
      filters,
      Object.entries(values)
        .filter(([name, names]) => names.length > 1 || state[name])
        .map(([name, names]) => {
          const choose = (value) => () => {
            state[name] = value;
            keep();
            fillFilters();
          };
          return menu(
            state[name] || name.replace(/^./, (letter) => letter.toUpperCase()),
            [
              [`any ${name}`, choose(""), state[name] ? "" : "✓"],
              ...names.sort().map((each) => [each, choose(each), each === state[name] ? "✓" : ""]),
            ],
            { label: `filter by ${name}` },
          );
        }),
    );
  }
  function shown() {
    const text = state.q.toLowerCase();
    const found = all.filter(
      (each) =>
        (!state.owner || each.owner === state.owner) &&
        (!state.state || kindOf(each) === state.state) &&
        (!state.tag || each.tags?.includes(state.tag)) &&
        [each.name, each.notes ?? "", each.owner ?? "", ...(each.tags ?? [])].join(" ").toLowerCase().includes(text),
    );
    const by = HEADS.find(([key]) => key && key === state.sort);
    if (!by) return found.sort((a, b) => groupOf(a) - groupOf(b) || (b.created_at ?? 0) - (a.created_at ?? 0));
    // Experiments without a value come last in both directions.
    const value = by[2],
      sign = reverse ? -1 : 1,
      missing = (each) => value(each) === undefined || value(each) === null || Number.isNaN(value(each));
    return found.sort(
      (a, b) =>
        missing(a) - missing(b) ||
        sign * (typeof value(a) === "number" ? value(a) - value(b) : String(value(a)).localeCompare(String(value(b)))),
    );
  }
  function draw() {
    const found = shown(),
      owners = new Set(all.map((each) => each.owner ?? "")).size > 1,
      isGrouped = !state.sort;
    total.textContent = found.length === all.length ? number(all.length) : `${found.length} of ${all.length}`;
    order.textContent = isGrouped ? "grouped by urgency · newest first" : "";
    const heads = HEADS.filter(([, title]) => title !== "owner" || owners);
    refill(head, [
      el("td", { class: "pick" }),
      ...heads.map(([key, title, , kind]) => {
        const isSorted = key && (key === state.sort || (isGrouped && key === "started")),
          down = isGrouped || reverse,
          choose = () => {
            reverse = state.sort === key && !reverse;
            state.sort = key;
            keep();
          };
        return title
          ? el(
              "th",
              { class: kind, scope: "col", "aria-sort": isSorted ? (down ? "descending" : "ascending") : null },
              key
                ? el("button", { type: "button", onclick: choose }, title + (isSorted ? (down ? " ↓" : " ↑") : ""))
                : title,
            )
          : el("td", { class: kind });
      }),
    ]);
    const rows = [];
    found.forEach((each, index) => {
      const group = groupOf(each);
      if (isGrouped && (index === 0 || groupOf(found[index - 1]) !== group))
        rows.push(
          el(
            "tr",
            { class: "group", "data-id": `group ${group}` },
            el(
              "td",
              { colspan: heads.length + 1 },
              `${GROUPS[group]} `,
              el("span", {}, number(found.filter((other) => groupOf(other) === group).length)),
            ),
          ),
        );
      rows.push(rowOf(each, owners, isGrouped && group === 0));
    });
    refill(body, rows);
    none.hidden = !isLoaded || found.length > 0;
    foot.hidden = !found.length;
    list.querySelector(".scroll").hidden = isLoaded && !found.length;
    if (!none.hidden && !none.children.length)
      none.append(
        ...(all.length
          ? [
              el(
                "span",
                {},
                "No experiment matches ",
                button("Clear filter", () => {
                  for (const key of Object.keys(state)) state[key] = "";
                  search.value = "";
                  keep();
                }),
              ),
            ]
          : [el("div", {}, el("p", {}, "No experiments yet"), command("mqtune demo"))]),
      );
    if (none.hidden) none.replaceChildren();
    showSelection();
  }
  function rowOf(each, owners, isUrgent) {
    const box = el("input", {
      type: "checkbox",
      "aria-label": `select ${each.name}`,
      checked: selected.has(each.name) ? "" : null,
    });
    box.addEventListener("click", () => {
      if (box.checked) selected.add(each.name);
      else selected.delete(each.name);
      draw();
    });
    const counts = each.statuses ?? {},
      made = each.progress,
      ran = ranFor(each),
      kind = kindOf(each),
      rest = left(each),
      arrow = ARROWS[each.mode] ?? "";
    const why = isUrgent ? (each.error ?? reasons.get(each.name) ?? each.reason ?? "") : "";
    const cell = (kinds, ...children) => el("td", { class: kinds }, ...children);
    return el(
      "tr",
      { "data-id": each.name, class: selected.has(each.name) ? "picked" : null },
      el("td", { class: "pick" }, box),
      cell(
        "name",
        el("a", { href: place("e", each.name), title: each.notes || null }, each.name),
        ...(each.tags ?? []).map(tag),
        why
          ? el(
              "span",
              { class: `reason ${["failed", "unreadable"].includes(kind) ? "failed-text" : "warn-text"}` },
              why,
            )
          : null,
      ),
      cell(
        "status",
        el(
          "span",
          { class: "state" },
          glyph(kind),
          each.error ? "unreadable" : each.state,
          rest === undefined ? null : el("span", { class: "note seldom" }, `${about(rest)} left`),
        ),
      ),
      cell("made", made ? progress({ counts, planned: made.planned, trials: each.trials }) : ""),
      cell(
        "right count",
        made ? `${number(made.ended)} / ${number(Math.max(made.planned ?? 0, each.trials ?? 0))}` : "",
      ),
      cell("right seldom failed-text", counts.failed ? number(counts.failed) : ""),
      cell("right best", each.best === undefined ? "" : columnFormat([each.best], 4)(each.best)),
      cell("metric soft", each.metric ? `${[each.metric].flat().join(", ")} ${arrow}` : ""),
      cell("seldom", sparkline((made?.best_so_far ?? []).map(Number)) ?? ""),
      cell("right seldom", ran === undefined ? "" : lasted(ran)),
      el(
        "td",
        { class: "right seldom soft", title: each.created_at ? exact(each.created_at) : null },
        each.created_at ? (isVirtual(each.created_at) ? "virtual time" : ago(each.created_at)) : "",
      ),
      owners ? cell("seldom soft", each.owner ?? "") : null,
    );
  }
  function showSelection() {
    picked.hidden = !selected.size;
    const names = [...selected];
    picked.replaceChildren(
      el("b", {}, `${names.length} selected`),
      names.length > 1
        ? button(
            "Compare",
            () => {
              location.hash = place("compare", ...names);
            },
            { class: "button primary" },
          )
        : el("span", { class: "note" }, "select another one to compare"),
      plain("Clear", clear, { class: "plain quiet push" }),
      el("kbd", {}, "Esc"),
    );
  }
  function clear() {
    selected.clear();
    draw();
  }

  const ends = [
    poll(2, async () => {
      let found;
      try {
        found = await api("experiments");
      } catch (error) {
        if (!error.away) problem(error.message);
        return;
      }
      problem(found.problem);
      all = found.experiments;
      isLoaded = true;
      fillFilters();
      draw();
    }),
    poll(10, async () => {
      // For each of these requests, the server reads an experiment. So only a few are made.
      for (const each of all.filter((one) => kindOf(one) === "waiting").slice(0, MOST_ASKED)) {
        try {
          reasons.set(each.name, (await api("why", { name: each.name })).text);
        } catch {
          reasons.delete(each.name);
        }
      }
    }),
  ];
  return {
    end: () => ends.forEach((end) => end()),
    escape: () => {
      if (selected.size) clear();
    },
  };
}
