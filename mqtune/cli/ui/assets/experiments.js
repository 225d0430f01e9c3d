// The list of experiments: searched, sorted and filtered here, as it is short; and several of them selected to be compared.
import { button, el, lasted, number, place, progress, refill, sparkline, tag } from "./elements.js";
import { api, poll, problem, show } from "./server.js";

const HEADS = [
  ["name", "name", (each) => each.name], ["state", "state", (each) => each.error ?? each.state], ["progress", "progress", (each) => each.progress?.ended / Math.max(1, each.progress?.planned ?? 0, each.trials ?? 0), "number"],
  ["failed", "failed", (each) => each.statuses?.failed, "number"], ["best", "best", (each) => each.best, "number"], ["", "so far"], ["ran", "ran", ranFor, "number"],
  ["started", "started", (each) => each.created_at, "number"], ["owner", "owner", (each) => each.owner ?? ""], ["", "tags"],
];
// What a narrow screen has no room for.
const NARROW = new Set(["name", "state", "progress", "best"]);

// To the minute: a list has no room for more.
const started = (at) => (at ? new Date(at * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" }) : "");

function ranFor({ state, created_at: began, progress: made }) {
  if (!began || !made) return undefined;
  return Math.max(0, (state === "running" || state === "waiting for a slot" ? Date.now() / 1000 : made.updated_at) - began);
}

export function experimentsPage(main) {
  const asked = new URLSearchParams(location.hash.split("?")[1] ?? "");
  const state = Object.fromEntries(["q", "owner", "state", "tag", "sort"].map((key) => [key, asked.get(key) ?? ""]));
  let reverse = asked.has("reverse"), all = [];
  const selected = new Set();
  const search = el("input", { type: "search", placeholder: "search names, notes, tags, owners", "aria-label": "search", value: state.q });
  const filters = el("span", { class: "controls" }), picked = el("div", { class: "bar selection", hidden: "" }), head = el("tr"), body = el("tbody"), none = el("p", { class: "note" });
  const total = el("h1", {}, "Experiments");
  main.replaceChildren(el("div", { class: "bar" }, total, search, filters), el("section", { class: "card" }, picked, el("div", { class: "scroll" }, el("table", { class: "experiments" }, el("thead", {}, head), body)), none));
  show("", "");

  function keep() {
    const found = new URLSearchParams(Object.entries(state).filter(([, value]) => value));
    if (reverse) found.set("reverse", "");
    history.replaceState(null, "", `#/${String(found) ? `?${found}` : ""}`);
    draw();
  }
  search.addEventListener("input", () => { state.q = search.value; keep(); });

  function fillFilters() {
    const values = {
      state: [...new Set(all.map((each) => kindOf(each)))], owner: [...new Set(all.map((each) => each.owner ?? "").filter(Boolean))], tag: [...new Set(all.flatMap((each) => each.tags ?? []))],
    };
    refill(filters, Object.entries(values).filter(([key, names]) => names.length > 1 || state[key]).map(([key, names]) => {
      const box = el("select", { "aria-label": key }, el("option", { value: "" }, `any ${key}`), ...names.sort().map((name) => el("option", { value: name, selected: name === state[key] ? "" : null }, name)));
      box.addEventListener("change", () => { state[key] = box.value; keep(); });
      return box;
    }));
  }
  function shown() {
    const text = state.q.toLowerCase();
    const found = all.filter((each) => (!state.owner || each.owner === state.owner) && (!state.state || kindOf(each) === state.state) && (!state.tag || each.tags?.includes(state.tag))
      && [each.name, each.notes ?? "", each.owner ?? "", ...(each.tags ?? [])].join(" ").toLowerCase().includes(text));
    const by = HEADS.find(([key]) => key && key === state.sort);
    if (!by) return found;
    // Who has no value comes last, whichever way it is sorted.
    const value = by[2], sign = reverse ? -1 : 1, none_ = (each) => value(each) === undefined || value(each) === null || Number.isNaN(value(each));
    return found.sort((a, b) => none_(a) - none_(b) || sign * (typeof value(a) === "number" ? value(a) - value(b) : String(value(a)).localeCompare(String(value(b)))));
  }
  function draw() {
    const found = shown(), owners = new Set(all.map((each) => each.owner ?? "")).size > 1;
    total.textContent = found.length === all.length ? `Experiments (${all.length})` : `Experiments (${found.length} of ${all.length})`;
    const heads = HEADS.filter(([, title]) => title !== "owner" || owners);
    refill(head, [el("th", { class: "pick" }), ...heads.map(([key, title]) => {
      const mark = key && key === state.sort ? (reverse ? " ▲" : " ▼") : "";
      return el("th", { class: NARROW.has(title) ? null : "seldom" }, key ? el("button", { type: "button", onclick: () => { reverse = state.sort === key && !reverse; state.sort = key; keep(); } }, title + mark) : title);
    })]);
    refill(body, found.map((each) => rowOf(each, owners)));
    none.textContent = all.length ? (found.length ? "" : "no experiment is like that") : "There is no experiment yet; try: mqtune demo";
    showSelection();
  }
  function rowOf(each, owners) {
    const box = el("input", { type: "checkbox", "aria-label": `select ${each.name}`, checked: selected.has(each.name) ? "" : null });
    box.addEventListener("click", () => { box.checked ? selected.add(each.name) : selected.delete(each.name); draw(); });
    const counts = each.statuses ?? {}, made = each.progress, ran = ranFor(each), cell = (title, ...children) => el("td", { "data-column": title, class: NARROW.has(title) ? null : "seldom" }, ...children);
    return el("tr", { "data-id": each.name, class: selected.has(each.name) ? "picked" : null },
      el("td", { class: "pick" }, box), cell("name", el("a", { href: place("e", each.name), title: each.notes || null }, each.name)), cell("state", el("span", { class: `status ${kindOf(each).replaceAll(" ", "_")}` }, each.error ?? each.state)),
      cell("progress", made ? progress({ counts, ended: made.ended, planned: made.planned, trials: each.trials }) : ""), cell("failed", counts.failed ? el("span", { class: "bad" }, number(counts.failed)) : ""),
      cell("best", each.best === undefined ? "" : [el("b", {}, number(each.best)), ` ${each.metric}`]), cell("so far", sparkline((made?.best_so_far ?? []).map(Number)) ?? ""),
      cell("ran", ran === undefined ? "" : lasted(ran)), cell("started", started(each.created_at)), owners ? cell("owner", each.owner ?? "") : null, cell("tags", ...(each.tags ?? []).map(tag)));
  }
  function showSelection() {
    picked.hidden = !selected.size;
    const names = [...selected];
    picked.replaceChildren(el("b", {}, `${names.length} selected`), button("clear", () => { selected.clear(); draw(); }), names.length > 1 ? button("compare", () => { location.hash = place("compare", ...names); }, { class: "button main" }) : "");
  }

  return poll(2, async () => {
    let found;
    try { found = await api("experiments"); } catch (error) { if (!error.away) problem(error.message); return; }
    problem(found.problem);
    all = found.experiments;
    fillFilters();
    draw();
  });
}

// The state without its numbers.
const kindOf = ({ error, state }) => (error ? "unreadable" : (/^(driver away|its script)/.exec(state) ?? [state])[0]);
