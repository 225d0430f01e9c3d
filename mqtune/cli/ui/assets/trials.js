// The table of trials: a window of rows of as many trials as there are, which the server filters and sorts; and what is done to those that are selected.
import { button, counted, el, menu, number, place, refill, save, status } from "./elements.js";
import { api, me, paced } from "./server.js";
import { answer, manyButton } from "./steering.js";

// Rows that are asked for at once, and those among them before what is seen.
const WINDOW = 120, BEFORE = 40;
// Scrolling and typing are answered faster than news.
const AT_ONCE_MS = 50;
const MOST_COMPARED = 20;

export function trialTable(name, chartsFollow) {
  const filter = el("input", { type: "search", placeholder: "filter: adam and lr<0.1 and status=completed", "aria-label": "filter", spellcheck: "false" });
  const said = answer(), error = el("p", { class: "note points", role: "alert" }), total = el("h2", {}, "Trials"), head = el("tr"), body = el("tbody"), columnList = el("div", { class: "choices" });
  const selection = el("div", { class: "bar selection", hidden: "" }), pane = el("div", { class: "window", tabindex: "0", role: "region", "aria-label": "trials" }, el("table", {}, el("thead", {}, head), body));
  const node = el("section", { class: "card trials" }, el("div", { class: "bar" }, total, filter, menu("columns", {}, columnList)), error, selection, said, pane);
  const kept = `mqtune.columns.${name}`;
  let columns = [], chosen = stored(kept), sort = "", reverse = false, loaded = { begin: 0, rows: [] }, count = 0, turn = 0;
  let selected = new Set(), anchor = "", every;
  const statuses = new Map();

  const parameters = () => ({ name, where: filter.value, sort, ...(reverse ? { reverse: "" } : {}) });
  const shownColumns = () => columns.filter((each) => chosen[each.key] ?? each.shown);
  const rowHeight = () => body.querySelector("tr[data-id]")?.offsetHeight || 32;
  const firstSeen = () => Math.max(0, Math.floor(pane.scrollTop / rowHeight()));

  async function load() {
    const mine = ++turn;
    let found;
    try {
      found = await api("trials", { ...parameters(), begin: Math.max(0, firstSeen() - BEFORE), count: WINDOW });
      error.textContent = "";
    } catch (failed) {
      if (!failed.away && mine === turn) error.textContent = failed.message;
      return 1;
    }
    if (mine !== turn) return 0;
    if (JSON.stringify(columns) !== JSON.stringify(found.columns)) { columns = found.columns; fillChoices(); }
    loaded = found;
    if (count !== found.total) { count = found.total; every = undefined; }
    found.rows.forEach((row) => statuses.set(row.id, row.status));
    draw();
    showSelection();
    return found.pause_s;
  }
  const look = paced(async () => { await load(); return 0; }, AT_ONCE_MS);
  const renew = paced(async () => Math.max(1000, 1000 * (await load())));

  function draw() {
    total.textContent = `Trials (${number(count)})`;
    refill(head, [el("th", { class: "pick" }, picked()), headOf({ key: "trial", title: "trial", sorts: true }), headOf({ key: "status", title: "status", sorts: true }), ...shownColumns().map(headOf)]);
    const below = Math.max(0, count - loaded.begin - loaded.rows.length);
    refill(body, [gap(loaded.begin, "above"), ...loaded.rows.map(rowOf), gap(below, "below")]);
  }
  function gap(rows, where) {
    const height = rows * rowHeight();
    const cell = el("td", { colspan: 99 }), row = el("tr", { class: `gap ${where}`, "data-height": height }, cell);
    cell.style.height = `${height}px`;
    return height ? row : null;
  }
  function picked() {
    const box = el("input", { type: "checkbox", "aria-label": "select all that the filter keeps", checked: count > 0 && selected.size >= count ? "" : null });
    box.addEventListener("click", async () => { selected = box.checked ? new Set(await ids()) : new Set(); draw(); showSelection(); });
    return box;
  }
  function headOf({ key, title, kind, sorts }) {
    if (!sorts) return el("th", {}, title);
    const mark = key === sort ? (reverse ? " ▲" : " ▼") : "";
    const turnOver = () => { reverse = key === sort && !reverse; sort = key; every = undefined; pane.scrollTop = 0; look(); };
    return el("th", { class: kind, "aria-sort": mark ? (reverse ? "descending" : "ascending") : null }, el("button", { type: "button", onclick: turnOver }, title + mark));
  }
  function rowOf({ id, status: is, cells }) {
    const box = el("input", { type: "checkbox", "aria-label": `select trial ${id}`, checked: selected.has(id) ? "" : null });
    box.addEventListener("click", (event) => pick(id, box.checked, event.shiftKey));
    const row = el("tr", { "data-id": id, class: selected.has(id) ? "picked" : null },
      el("td", { class: "pick" }, box), el("td", {}, el("a", { href: place("e", name, id) }, id)), el("td", {}, status(is)),
      ...shownColumns().map(({ key }) => el("td", { title: cells[key]?.length > 30 ? cells[key] : null }, cells[key] ?? "")));
    return row;
  }
  async function pick(id, is, isRange) {
    if (isRange && anchor) {
      const all = await ids(), [from, to] = [all.indexOf(anchor), all.indexOf(id)].sort((a, b) => a - b);
      if (from >= 0) all.slice(from, to + 1).forEach((each) => (is ? selected.add(each) : selected.delete(each)));
    } else if (is) selected.add(id);
    else selected.delete(id);
    anchor = id;
    draw();
    showSelection();
  }
  // All that the filter keeps, in the order of the table.
  async function ids() {
    if (!every) {
      const found = await api("trials", { ...parameters(), ids: "" });
      every = found.ids;
      every.forEach((id, place_) => statuses.set(id, found.statuses[place_]));
    }
    return every;
  }

  function showSelection() {
    selection.hidden = !selected.size;
    if (!selected.size) return;
    const chosenIds = [...selected];
    const verbs = me.steer ? Object.entries(me.verbs).map(([verb, fits]) => [verb, chosenIds.filter((id) => fits.includes(statuses.get(id)))]).filter(([, fitting]) => fitting.length) : [];
    const compared = chosenIds.slice(0, MOST_COMPARED);
    const key = JSON.stringify([chosenIds.length, compared, verbs.map(([verb, fitting]) => [verb, fitting.length, fitting[0]])]);
    if (key === selection.dataset.key) return;
    selection.dataset.key = key;
    selection.replaceChildren(
      el("b", {}, `${number(chosenIds.length)} selected`), button("clear", () => { selected = new Set(); draw(); showSelection(); }),
      chosenIds.length > 1 ? button(chosenIds.length > MOST_COMPARED ? `compare the first ${MOST_COMPARED}` : "compare", () => { location.hash = place("trials", name, ...compared); }) : "",
      button("export", exportIt), el("span", { class: "room" }), ...verbs.map(([verb, fitting]) => manyButton(name, verb, fitting, said)),
    );
  }
  async function exportIt() {
    try {
      const { file, text } = await api("export", {}, { name, trials: [...selected] });
      save(file, text, "text/csv");
      said.textContent = `${counted(selected.size, "trial")} written to ${file}`;
    } catch (failed) { said.textContent = failed.message; }
  }

  function fillChoices() {
    const choice = (each) => {
      const box = el("input", { type: "checkbox" });
      box.checked = chosen[each.key] ?? each.shown;
      box.addEventListener("change", () => { chosen[each.key] = box.checked; keep(kept, chosen); draw(); });
      return el("label", {}, box, ` ${each.title}`, each.kind ? el("small", {}, ` ${each.kind}`) : null);
    };
    columnList.replaceChildren(...columns.map(choice), button("default columns", () => { chosen = {}; keep(kept, chosen); fillChoices(); draw(); }));
  }

  function filterBy(text) {
    filter.value = text;
    every = undefined;
    pane.scrollTop = 0;
    look();
    chartsFollow?.(text);
  }
  filter.addEventListener("input", () => filterBy(filter.value));
  pane.addEventListener("scroll", () => {
    const first = firstSeen(), seen = Math.ceil(pane.clientHeight / rowHeight());
    if (first < loaded.begin || Math.min(count, first + seen) > loaded.begin + loaded.rows.length) look();
  });
  look();
  return {
    node,
    filterBy,
    get where() { return filter.value; },
    changed(rows) {
      for (const each of rows) {
        statuses.set(each.id, each.status);
        const place_ = loaded.rows.findIndex((row) => row.id === each.id);
        if (place_ < 0) continue;
        loaded.rows[place_] = each;
        const old = body.querySelector(`tr[data-id="${CSS.escape(each.id)}"]`);
        if (!old) continue;
        refill(old, [...rowOf(each).children]);
        old.classList.remove("changed");
        requestAnimationFrame(() => old.classList.add("changed"));
      }
      if (rows.length) showSelection();
      renew();
    },
    end: () => { look.stop(); renew.stop(); },
  };
}

// What somebody has chosen before, in this browser; it may forbid to keep anything.
function stored(key) {
  try { return JSON.parse(localStorage.getItem(key)) ?? {}; } catch { return {}; }
}

function keep(key, value) {
  try { localStorage.setItem(key, JSON.stringify(value)); } catch { /* then it is chosen for this page alone */ }
}
