// The tab of trials. The server filters and sorts them, and the table has only the rows around the visible ones.
import { button, el, glyph, menu, place, plain, refill, save, sparkline, star, status, words } from "./elements.js";
import { cellFormat, counted, number } from "./format.js";
import { api, paced } from "./server.js";
import { toast } from "./dialogs.js";
import { labels } from "./labels.js";
import { trialButtons } from "./steering.js";

// The rows of one request, and how many of them are above the first visible row.
const WINDOW = 120,
  BEFORE = 40;
// The least time between two requests while the user scrolls or types.
const AT_ONCE_MS = 50;
const MOST_COMPARED = 20;
const SEGMENTS = ["running", "completed", "early_stopped", "paused", "failed", "abandoned", "queued"];
const STATUS = /\s*(?:\band\s+)?\bstatus=(\w+)\s*(?:and\b\s*)?/;
const GROUPS = { metric: "metrics", parameter: "parameters" };
const KEPT_IDS = 3;

export function trialsTab(context) {
  const { name } = context;
  const filter = el("input", {
    type: "search",
    class: "mono-input",
    placeholder: "adam and lr<0.1",
    "aria-label": "filter",
    spellcheck: "false",
    value: context.where || new URLSearchParams(location.hash.split("?")[1] ?? "").get("where") || "",
  });
  const total = el("span", {}),
    error = el("p", { class: "note pointed mono", role: "alert" }),
    segments = el("div", { class: "segments", role: "group", "aria-label": "status" });
  const groups = el("tr", { class: "grouped" }),
    head = el("tr"),
    body = el("tbody"),
    grid = el("table", { class: "trials rows" }, el("thead", {}, groups, head), body);
  const pane = el("div", { class: "window", tabindex: "0", role: "region", "aria-label": "trials" }, grid),
    pill = button(
      "order has changed · update",
      () => {
        isHeld = false;
        renewNow();
      },
      { class: "button order", hidden: "" },
    );
  const selection = el("div", { class: "selection", role: "toolbar", "aria-label": "selected trials", hidden: "" });
  const node = el("section", { class: "card table chart", "aria-label": "trials" }, pill, pane);
  const kept = `mqtune.columns.${name}`;
  const bar = el(
    "div",
    { class: "bar" },
    el("span", { class: "filter-box" }, filter, total),
    segments,
    el(
      "span",
      { class: "bar push seldom" },
      menu("Columns", columnChoices, { label: "columns" }),
      button("Export…", () => exportIt(undefined)),
    ),
  );
  const sheet = el("div", { class: "bar phone" }, menu("Sort", sortChoices, { side: "left" }));
  let columns = [],
    chosen = stored(kept),
    sort = "",
    reverse = false,
    loaded = { begin: 0, rows: [] },
    count = 0,
    counts = {},
    turn = 0,
    every,
    anchor = "",
    cursor = "",
    isHeld = false,
    isWrong = false;
  let selected = new Set(),
    formats = {};
  const statuses = new Map();

  const parameters = () => ({ name, where: filter.value, sort, ...(reverse ? { reverse: "" } : {}) });
  const shownColumns = () => columns.filter((each) => chosen[each.key] ?? each.shown);
  const rowHeight = () => body.querySelector("tr[data-id]")?.offsetHeight || 33;
  const firstSeen = () => Math.max(0, Math.floor(pane.scrollTop / rowHeight()));
  // Lets the table end at the end of the screen.
  const fit = () => {
    pane.style.maxHeight = `${Math.max(240, innerHeight - pane.getBoundingClientRect().top - scrollY - 24)}px`;
  };

  async function load() {
    const mine = ++turn;
    let found;
    try {
      found = await api("trials", { ...parameters(), begin: Math.max(0, firstSeen() - BEFORE), count: WINDOW });
    } catch (failed) {
      if (!failed.away && mine === turn) wrong(failed.message);
      return 1;
    }
    if (mine !== turn) return 0;
    wrong("");
    columns = found.columns;
    loaded = found;
    if (count !== found.total) every = undefined;
    [count, counts] = [found.total, found.counts];
    found.rows.forEach((row) => statuses.set(row.id, row.status));
    pill.hidden = true;
    draw();
    showSelection();
    return found.pause_s;
  }
  function wrong(message) {
    isWrong = Boolean(message);
    error.textContent = message ? `${message}\nshowing the last valid filter` : "";
    filter.classList.toggle("wrong", isWrong);
    pane.classList.toggle("stale", isWrong);
  }
  const look = paced(async () => {
    await load();
    return 0;
  }, AT_ONCE_MS);
  // Whether the user may be about to click a row. Then rows don't move.
  const isBusy = () => pane.matches(":hover") || selected.size > 0 || pane.scrollTop > 0;
  const renewNow = paced(async () => Math.max(1000, 1000 * (await load())));
  const renew = paced(async () => {
    if (!isBusy()) return Math.max(1000, 1000 * (await load()));
    let found;
    try {
      found = await api("trials", { ...parameters(), begin: Math.max(0, firstSeen() - BEFORE), count: WINDOW });
    } catch {
      return 1000;
    }
    const before = loaded.rows.map(({ id }) => id).join(),
      isSame = found.rows.map(({ id }) => id).join() === before && found.begin === loaded.begin;
    if (isSame) {
      loaded = found;
      [count, counts] = [found.total, found.counts];
      draw();
    } else {
      pill.hidden = false;
      showTotal(found.total);
    }
    return Math.max(1000, 1000 * found.pause_s);
  });

  function draw() {
    showTotal(count);
    fillSegments();
    const shown = shownColumns(),
      numeric = new Set();
    formats = {};
    for (const { key, kind } of shown) {
      const values = loaded.rows.map((row) => row.cells[key]);
      if (values.some((value) => typeof value === "number")) numeric.add(key);
      formats[key] = cellFormat({ key, kind }, values);
    }
    const begins = (index) => (index === 0 ? shown[0]?.kind : shown[index].kind !== shown[index - 1].kind) && "begins";
    const classOf = (column, index) =>
      [numeric.has(column.key) ? "right" : "", begins(index) || ""].filter(Boolean).join(" ") || null;
    const spans = [];
    shown.forEach(({ kind }) => {
      if (spans.at(-1)?.kind === kind) spans.at(-1).length += 1;
      else spans.push({ kind, length: 1 });
    });
    groups.hidden = !shown.some(({ kind }) => kind);
    refill(groups, [
      el("td", { colspan: 3 }),
      ...spans.map(({ kind, length }, index) =>
        GROUPS[kind]
          ? el("th", { scope: "colgroup", colspan: length, class: "begins" }, GROUPS[kind])
          : el("td", { colspan: length, class: index ? "begins" : null }),
      ),
    ]);
    refill(head, [
      el("th", { class: "pick", scope: "col" }, picked()),
      headOf({ key: "trial", title: "trial", sorts: true }),
      headOf({ key: "status", title: "status", sorts: true }),
      ...shown.map((column, index) => headOf(column, classOf(column, index))),
    ]);
    const below = Math.max(0, count - loaded.begin - loaded.rows.length);
    grid.setAttribute("aria-rowcount", String(count + 1));
    refill(body, [
      gap(loaded.begin, "above"),
      ...loaded.rows.map((row) => rowOf(row, shown, classOf)),
      count ? null : emptyRow(),
      gap(below, "below"),
    ]);
    fit();
  }
  function showTotal(of) {
    const all = context.summary?.trials ?? of;
    total.textContent = filter.value ? `${number(of)} of ${number(all)}` : "";
  }
  function fillSegments() {
    const now = STATUS.exec(filter.value)?.[1] ?? "";
    const choose = (value) => {
      const rest = filter.value.replace(STATUS, " ").trim();
      filterBy([rest, value ? `status=${value}` : ""].filter(Boolean).join(" and "));
    };
    const part = (key, title) =>
      el(
        "button",
        { type: "button", "aria-pressed": String(key === now), onclick: () => choose(key) },
        key ? glyph(key) : null,
        title,
      );
    refill(segments, [
      part("", `All${now ? "" : ` ${number(count)}`}`),
      ...SEGMENTS.filter((each) => counts[each] || each === now).map((each) =>
        part(each, `${words(each).replace(/^./, (letter) => letter.toUpperCase())} ${number(counts[each] ?? 0)}`),
      ),
    ]);
  }
  function gap(rows, where) {
    const height = rows * rowHeight();
    if (!height) return null;
    const cell = el("td", { colspan: 99 });
    cell.style.height = `${height}px`;
    return el("tr", { class: `gap ${where}`, "data-height": height }, cell);
  }
  const emptyRow = () =>
    el(
      "tr",
      {},
      el(
        "td",
        { colspan: 99 },
        el(
          "div",
          { class: "nothing" },
          filter.value
            ? el(
                "span",
                {},
                "No trial matches ",
                button("Clear filter", () => filterBy("")),
              )
            : "No trial has started",
        ),
      ),
    );
  function picked() {
    const box = el("input", {
      type: "checkbox",
      "aria-label": "select all that match the filter",
      checked: count > 0 && selected.size >= count ? "" : null,
    });
    box.addEventListener("click", async () => {
      selected = box.checked ? new Set(await ids()) : new Set();
      draw();
      showSelection();
    });
    return box;
  }
  // Arrows and aria-sort show the order of the values. A metric is sorted with its best values first.
  function headOf({ key, title, sorts }, kind = null) {
    const isMost = context.summary?.modes?.[0] === "max" && ["best"].includes(key),
      isDown = key === sort ? reverse !== isMost : false;
    const isSorted = key === sort || (!sort && key === "best");
    const down = sort ? isDown : isMost;
    if (!sorts) return el("th", { class: kind, scope: "col" }, title);
    const turnOver = () => {
      reverse = key === sort && !reverse;
      sort = key;
      every = undefined;
      pane.scrollTop = 0;
      look();
    };
    return el(
      "th",
      { class: kind, scope: "col", "aria-sort": isSorted ? (down ? "descending" : "ascending") : null },
      el("button", { type: "button", onclick: turnOver }, title + (isSorted ? (down ? " ↓" : " ↑") : "")),
    );
  }
  function rowOf({ id, status: is, cells, curve }, shown, classOf) {
    const box = el("input", {
      type: "checkbox",
      "aria-label": `select trial ${id}`,
      checked: selected.has(id) ? "" : null,
    });
    box.addEventListener("click", (event) => pick(id, box.checked, event.shiftKey));
    const config = Object.entries(cells)
      .filter(([key]) => key.startsWith("config."))
      .map(([key, value]) => `${key.slice(7)} ${(formats[key] ?? String)(value)}`)
      .join(" · ");
    const isBest = context.summary?.best?.trial === id && context.summary.metrics.length === 1;
    const cellOf = (column, index) => {
      const { key } = column,
        value = cells[key],
        kind = [
          classOf(column, index),
          key === "best" ? "best" : "seldom",
          value === undefined && key !== "curve" ? "absent" : "",
        ]
          .filter(Boolean)
          .join(" ");
      if (key === "curve") return el("td", { class: kind }, sparkline(curve ?? [], is) ?? "");
      const text = formats[key](value);
      return el(
        "td",
        {
          class: typeof value === "string" ? `${kind} cut` : kind,
          title: typeof value === "string" && value.length > 24 ? value : null,
        },
        text,
      );
    };
    const row = el(
      "tr",
      { "data-id": id, class: selected.has(id) ? "picked" : null, "aria-selected": selected.has(id) ? "true" : null },
      el("td", { class: "pick" }, box),
      el(
        "td",
        { class: "id" },
        el(
          "span",
          { class: "state" },
          el("a", { href: place("e", name, id) }, id),
          isBest ? star() : null,
          el("span", { class: "phone" }, status(is)),
        ),
      ),
      el("td", { class: "seldom" }, status(is)),
      ...shown.map(cellOf),
      el("td", { class: "config phone" }, config),
    );
    row.addEventListener("click", (event) => {
      if (!event.target.closest("a, input, button") && !String(getSelection()))
        pick(id, !selected.has(id), event.shiftKey);
    });
    return row;
  }
  async function pick(id, is, isRange) {
    if (isRange && anchor) {
      const all = await ids(),
        [from, to] = [all.indexOf(anchor), all.indexOf(id)].sort((a, b) => a - b);
      if (from >= 0) all.slice(from, to + 1).forEach((each) => (is ? selected.add(each) : selected.delete(each)));
    } else if (is) selected.add(id);
    else selected.delete(id);
    anchor = cursor = id;
    draw();
    showSelection();
  }
  // Returns the ids of all trials that match the filter, in the order of the table.
  async function ids() {
    if (!every) {
      const found = await api("trials", { ...parameters(), ids: "" });
      every = found.ids;
      every.forEach((id, index) => statuses.set(id, found.statuses[index]));
    }
    return every;
  }

  function clear() {
    selected = new Set();
    draw();
    showSelection();
  }
  function showSelection() {
    selection.hidden = !selected.size;
    if (!selected.size) {
      selection.dataset.key = "";
      selection.replaceChildren();
      return;
    }
    const chosenIds = [...selected],
      compared = chosenIds.slice(0, MOST_COMPARED),
      trials = chosenIds.map((id) => ({ id, status: statuses.get(id) }));
    const key = JSON.stringify([
      chosenIds.length,
      compared,
      Object.entries(Object.groupBy?.(trials, (each) => each.status) ?? {}).map(([is, some]) => [is, some.length]),
    ]);
    if (key === selection.dataset.key || selection.querySelector("[aria-expanded=true]")) return;
    selection.dataset.key = key;
    const more = [
      chosenIds.length === 1 ? ["Add tag or note…", () => editLabels(chosenIds[0])] : null,
      ["Export CSV", () => exportIt(chosenIds), number(chosenIds.length)],
      chosenIds.length === 1 ? ["Copy config", () => copyConfig(chosenIds[0])] : null,
    ].filter(Boolean);
    selection.replaceChildren(
      el("b", {}, `${number(chosenIds.length)} selected`),
      el("span", { class: "ids" }, chosenIds.length <= KEPT_IDS ? chosenIds.join(", ") : ""),
      chosenIds.length > 1
        ? button(
            chosenIds.length > MOST_COMPARED ? `Compare the first ${MOST_COMPARED}` : "Compare",
            () => {
              location.hash = place("trials", name, ...compared);
            },
            { class: "button wide" },
          )
        : "",
      ...trialButtons(name, trials, more, "up"),
      plain("Clear", clear, { class: "plain quiet push" }),
      el("kbd", {}, "Esc"),
    );
  }
  async function editLabels(id) {
    const found = await api("trial", { name, trial: id }),
      labelled = labels(name, id);
    labelled.show(found);
    labelled.edit();
  }
  async function copyConfig(id) {
    const found = await api("trial", { name, trial: id });
    const text = found.config.map((each) => `${each.name}=${each.value}`).join(" ");
    try {
      await navigator.clipboard.writeText(text);
      toast(`The config of trial ${id} is copied.`);
    } catch {
      toast(text);
    }
  }
  async function exportIt(those) {
    try {
      const wanted = those ?? (await ids()),
        { file, text } = await api("export", {}, { name, trials: wanted });
      save(file, text, "text/csv");
      toast(`${counted(wanted.length, "trial")} written to ${file}`);
    } catch (failed) {
      toast(failed.message);
    }
  }

  function columnChoices() {
    const choice = (each) => {
      const box = el("input", { type: "checkbox" });
      box.checked = chosen[each.key] ?? each.shown;
      box.addEventListener("change", () => {
        chosen[each.key] = box.checked;
        keep(kept, chosen);
        draw();
      });
      return el("label", {}, box, each.title, each.kind ? el("small", { class: "soft" }, each.kind) : null);
    };
    return [
      ...columns.map(choice),
      null,
      [
        "Default columns",
        () => {
          chosen = {};
          keep(kept, chosen);
          draw();
        },
      ],
    ];
  }
  function sortChoices() {
    return [
      { key: "", title: "best first" },
      { key: "trial", title: "trial" },
      ...columns.filter(({ sorts }) => sorts),
    ].map(({ key, title }) => [
      title,
      () => {
        [sort, reverse] = [key, false];
        every = undefined;
        look();
      },
      key === sort ? "✓" : "",
    ]);
  }

  function filterBy(text) {
    filter.value = text;
    every = undefined;
    pane.scrollTop = 0;
    look();
    context.filtered(text);
  }
  filter.addEventListener("input", () => filterBy(filter.value));
  pane.addEventListener("scroll", () => {
    const first = firstSeen(),
      seen = Math.ceil(pane.clientHeight / rowHeight());
    if (first < loaded.begin || Math.min(count, first + seen) > loaded.begin + loaded.rows.length) look();
  });
  pane.addEventListener("keydown", (event) => {
    const rows = loaded.rows.map(({ id }) => id),
      at = rows.indexOf(cursor),
      { key } = event;
    if (event.target.tagName === "INPUT" && key === " ") return;
    const next = {
      ArrowDown: Math.min(rows.length - 1, at + 1),
      ArrowUp: Math.max(0, at - 1),
      Home: 0,
      End: rows.length - 1,
    }[key];
    if (next !== undefined && rows[next]) {
      event.preventDefault();
      cursor = rows[next];
      const row = body.querySelector(`tr[data-id="${CSS.escape(cursor)}"]`);
      row?.scrollIntoView({ block: "nearest" });
      row?.querySelector("a")?.focus();
    } else if (key === " " && cursor) {
      event.preventDefault();
      pick(cursor, !selected.has(cursor), event.shiftKey);
    } else if (key === "Enter" && cursor && event.target === pane) location.hash = place("e", name, cursor);
  });
  addEventListener("resize", fit);
  if (filter.value) context.filtered(filter.value);
  look();
  return {
    nodes: [bar, sheet, error, node, selection],
    show() {},
    escape: () => {
      if (selected.size) clear();
    },
    changed(rows) {
      const shown = shownColumns();
      for (const each of rows) {
        statuses.set(each.id, each.status);
        const index = loaded.rows.findIndex((row) => row.id === each.id);
        if (index < 0) continue;
        loaded.rows[index] = each;
        body.querySelector(`tr[data-id="${CSS.escape(each.id)}"]`)?.classList.remove("flash");
      }
      if (rows.length && shown.length) {
        draw();
        showSelection();
        requestAnimationFrame(() =>
          rows
            .slice(0, WINDOW)
            .forEach((each) => body.querySelector(`tr[data-id="${CSS.escape(each.id)}"]`)?.classList.add("flash")),
        );
      }
      renew();
    },
    end: () => {
      look.stop();
      renew.stop();
      renewNow.stop();
      removeEventListener("resize", fit);
    },
  };
}

// Returns the choices that the user has made earlier in this browser, or {} if the browser stores nothing.
function stored(key) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? {};
  } catch {
    return {};
  }
}

function keep(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
  } catch {
    /* The browser stores nothing. The choice is valid until the page is closed. */
  }
}
