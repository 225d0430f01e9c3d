// The pages. Whatever a trial may have chosen is put in as text alone: there is no innerHTML here.
"use strict";

const main = document.getElementById("main");
const light = document.getElementById("live");
const FASTEST_MS = 200;
const KINDS = {
  history: "Best so far", curves: "Learning curves", parallel: "Parallel coordinates", slices: "Parameters", importances: "Importance",
  rungs: "Rungs", lineage: "Lineage", pareto: "Pareto front", timeline: "Timeline",
};
// What most experiments have nothing for.
const RARE = new Set(["rungs", "lineage", "pareto"]);
const STATUSES = ["running", "completed", "early_stopped", "paused", "failed", "abandoned", "staged"];
let me = {};
let close = () => {};
let turns = 0;
// The login under way: the page that is opened during it waits for it, for the token is no longer in the address.
let entering;
// What a page has asked for is given up when another one is opened: a browser has six connections, and pictures may take some seconds.
let left = new AbortController();

// Elements.

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((each) => each != null));
  return node;
}

// Puts children in place of those that an element has; those that are alike stay, so that a click on one is not lost.
function refill(node, children) {
  children.filter((each) => each).forEach((child, number_) => {
    const old = node.children[number_];
    if (!old) node.append(child);
    else if (old.isEqualNode(child)) return;
    else if (old.tagName === "TR" && old.dataset.id === child.dataset.id) refill(old, [...child.children]);
    else old.replaceWith(child);
  });
  while (node.children.length > children.filter((each) => each).length) node.lastElementChild.remove();
}

const card = (title, ...children) => el("section", { class: "card" }, title && el("h2", {}, title), ...children);
const words = (text) => text.replaceAll("_", " ");
const status = (text) => el("span", { class: `status ${text}` }, words(text));
const number = (value) => (typeof value === "number" ? (Number.isInteger(value) ? value.toLocaleString("en") : String(+value.toPrecision(4))) : String(value ?? ""));
const when = (at) => (at ? new Date(at * 1000).toLocaleString() : "");
const place = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

function lasted(seconds) {
  if (seconds < 60) return `${Math.max(0, seconds).toFixed(0)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${String(Math.floor(seconds % 60)).padStart(2, "0")} s`;
  return minutes < 1440 ? `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min` : `${Math.floor(minutes / 1440)} d ${Math.floor(minutes / 60) % 24} h`;
}

function table(heads, rows) {
  const body = rows.map((cells) => el("tr", {}, cells.map((cell) => (cell instanceof Element && cell.tagName === "TD" ? cell : el("td", {}, cell ?? "")))));
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, heads.map((head) => el("th", {}, head)))), el("tbody", {}, body)));
}

const tile = (value, name, kind) => el("div", { class: `tile ${kind ?? ""}` }, el("b", {}, value), el("span", {}, name));

// The server.

async function api(path, parameters, body) {
  // A login serves the page that is opened next too.
  const signal = path === "login" ? undefined : left.signal;
  const options = !body ? { signal } : { signal, method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json", "X-Mqtune": me.csrf ?? "" } };
  let answer;
  try {
    answer = await fetch(`api/${path}?${new URLSearchParams(parameters)}`, options);
  } catch {
    if (signal?.aborted) return new Promise(() => {});
    throw new Error("mqtune ui does not answer; is it still running?");
  }
  if (answer.status === 204) return {};
  const found = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  // Nobody waits for it any more.
  if (signal?.aborted) return new Promise(() => {});
  if (answer.ok) return found;
  if (answer.status === 401 && path !== "login") login(found.error);
  throw Object.assign(new Error(found.error), { status: answer.status });
}

// Calls back with each message of a stream, as long as the page is looked at; a broken stream is begun again.
function stream(path, parameters, take) {
  let source, again;
  const stop = () => { clearTimeout(again); source?.close(); source = undefined; };
  const start = () => {
    if (source || document.hidden) return;
    source = new EventSource(`api/${path}?${new URLSearchParams(parameters)}`);
    source.onmessage = (message) => { const found = JSON.parse(message.data); if (found.over) stop(); take(found); };
    source.onerror = () => {
      show("off", "reconnecting");
      // A browser tries again by itself unless it was refused.
      if (source.readyState === EventSource.CLOSED) { stop(); again = setTimeout(start, 2000); }
    };
  };
  const look = () => (document.hidden ? stop() : start());
  document.addEventListener("visibilitychange", look);
  start();
  return () => { document.removeEventListener("visibilitychange", look); stop(); };
}

function show(kind, text) {
  light.className = kind;
  light.textContent = text;
}

// Asks again and again as long as the page is looked at; returns what ends it.
function poll(seconds, ask) {
  let timer;
  const tick = async () => {
    if (!document.hidden) await ask();
    if (timer !== null) timer = setTimeout(tick, seconds * 1000);
  };
  tick();
  return () => { clearTimeout(timer); timer = null; };
}

// Calls a function soon after each request for that, at most as often as it allows by the milliseconds that it returns.
function paced(work) {
  let timer, dueAt = 0, busy = false, wanted = false;
  const run = async () => {
    timer = undefined;
    busy = true;
    wanted = false;
    let pause = 0;
    try {
      pause = (await work()) ?? 0;
    } finally {
      busy = false;
      dueAt = performance.now() + Math.max(FASTEST_MS, pause);
      if (wanted) ask();
    }
  };
  const ask = () => {
    wanted = true;
    if (!busy && timer === undefined) timer = setTimeout(run, Math.max(0, dueAt - performance.now()));
  };
  ask.stop = () => clearTimeout(timer);
  return ask;
}

// Pictures.

const seen = new IntersectionObserver((entries) => entries.forEach((each) => each.target.seen(each.isIntersecting)), { rootMargin: "200px" });

// A picture that is fetched when it comes into sight, and again when it has changed.
function picture(parameters, title, attributes) {
  const note = el("p", { class: "note" }), plot = el("div", { class: "plot" });
  const node = el("section", { class: `card ${attributes?.class ?? ""}`, "data-kind": parameters.kind }, el("h2", {}, title), note, plot);
  let inSight = false, stale = true, listens = false, last;
  const columns = () => Math.max(1, Math.floor((plot.clientWidth || 400) / 330));
  // One after the other: drawn into while it is still being drawn, a picture may keep the colours that it had.
  let drawn = Promise.resolve();
  const redraw = () => (drawn = drawn.catch(() => {}).then(() => last?.data && draw(plot, last)));
  const fetchIt = paced(async () => {
    if (!inSight || !stale) return 0;
    stale = false;
    try {
      last = await api("picture", { ...parameters, columns: columns() });
    } catch (error) {
      note.textContent = error.message;
      return 2000;
    }
    const began = performance.now();
    note.textContent = last.nothing ?? last.note;
    plot.hidden = Boolean(last.nothing);
    node.hidden = plot.hidden && RARE.has(parameters.kind);
    await redraw();
    if (last.data && !listens) {
      listens = true;
      plot.on("plotly_click", ({ points: [point] }) => { if (/^\w{4,}$/.test(point.text ?? "")) location.hash = place("e", parameters.name, point.text); });
    }
    return Math.max(1000 * last.pause_s, 10 * (performance.now() - began));
  });
  node.seen = (is) => { inSight = is; if (is && stale) fetchIt(); };
  node.changed = () => { stale = true; if (inSight && !document.hidden) fetchIt(); };
  dark.addEventListener("change", redraw);
  node.end = () => { seen.unobserve(node); fetchIt.stop(); dark.removeEventListener("change", redraw); Plotly.purge(plot); };
  seen.observe(node);
  return node;
}

// The pages.

function experimentsPage() {
  const problem = el("p", { class: "problem" }), list = el("div");
  main.replaceChildren(el("h1", {}, "Experiments"), problem, el("section", { class: "card" }, list));
  show("", "");
  return poll(2, async () => {
    let found;
    try { found = await api("experiments"); problem.textContent = found.problem; } catch (error) { problem.textContent = error.message; return; }
    const shared = new Set(found.experiments.map((each) => each.owner ?? "")).size > 1;
    const owned = (first, owner, ...others) => (shared ? [first, owner, ...others] : [first, ...others]);
    const rows = found.experiments.map((each) => owned(
      el("a", { href: place("e", each.name) }, each.name), each.owner ?? "", each.error ?? each.state, when(each.created_at), number(each.trials), number(each.statuses?.FAILED), number(each.reports),
      each.best === undefined ? "" : `${each.metric} = ${number(each.best)}`, (each.tags ?? []).join(", "),
    ));
    refill(list, [rows.length ? table(owned("name", "owner", "state", "started", "trials", "failed", "reports", "best", "tags"), rows) : el("p", {}, "There is no experiment yet; try: mqtune demo")]);
  });
}

// Why a trial, or what an experiment has, waits, and what can be done about it; empty while nothing does.
function reason(parameters) {
  const node = el("p", { class: "why", role: "status" });
  const end = poll(2, async () => {
    try { node.textContent = because(await api("why", parameters)); } catch { node.textContent = ""; }
  });
  return { node, end };
}

// What the attempts of a trial use of their machines, and a warning of those that leave a GPU idle.
function usageCard(name, trial) {
  const warnings = el("div", { role: "status" }), rows = el("div");
  const node = el("section", { class: "card", hidden: "" }, el("h2", {}, "Usage"), warnings, rows);
  const end = poll(5, async () => {
    let found;
    try { found = await api("usage", { name, trial }); } catch { return; }
    node.hidden = !found.attempts.length;
    refill(warnings, found.attempts.filter((each) => each.warning).map((each) => el("p", { class: "why" }, each.warning)));
    refill(rows, [table(["attempt", "now", "so far, or in total", ""], found.attempts.map((each) => [
      number(each.attempt), ...[each.now, each.usage, each.sharing].map((text) => el("td", { class: "wrap" }, text)),
    ]))]);
  });
  return { node, end };
}

const because = (found) => [found.text, found.way_out].filter(Boolean).join(" · ");

function experimentPage(name) {
  const problem = el("p", { class: "problem" }), tiles = el("div", { class: "tiles" }), about = el("p", { class: "note" });
  const pictures = Object.entries(KINDS).map(([kind, title]) => picture({ name, kind }, title, { class: ["slices", "parallel", "timeline", "lineage"].includes(kind) ? "wide" : "" }));
  const trials = trialTable(name, problem);
  const limits = me.steer ? steerExperiment(name) : null, why = reason({ name });
  main.replaceChildren(
    el("h1", {}, name), problem, why.node, tiles, about, limits ?? "", el("div", { class: "grid" }, pictures.slice(0, 2)), trials.node, el("div", { class: "grid" }, pictures.slice(2)),
  );
  let last = "";
  const end = stream("events", { name }, ({ summary, rows }) => {
    problem.textContent = summary.problem;
    show(summary.problem ? "off" : "on", summary.problem ? "no news" : summary.state);
    showSummary(summary, tiles, about);
    // Its next driver carries out what is asked of one that was interrupted or has failed.
    if (limits) limits.hidden = summary.outcome === "finished";
    const state = JSON.stringify([summary.reports, summary.counts, summary.tags]);
    if (state === last) return;
    last = state;
    trials.changed(rows, summary);
    pictures.forEach((each) => each.changed());
  });
  return () => { end(); why.end(); trials.end(); pictures.forEach((each) => each.end()); };
}

function showSummary(found, tiles, about) {
  const { best, metrics } = found;
  const ahead = best ? [tile(el("a", { href: place("e", found.name, best.trial) }, best.value), `best ${metrics[0]}, trial ${best.trial}`, "best")] : [];
  if (metrics.length > 1) ahead.push(tile(number(found.front), "on the Pareto front", "best"));
  const counts = STATUSES.filter((each) => found.counts[each]).map((each) => tile(number(found.counts[each]), status(each)));
  refill(tiles, [...ahead, tile(number(found.trials), "trials"), tile(number(found.reports), "reports"), ...counts]);
  const config = best ? `best config: ${best.config.map(([key, value]) => `${key}=${value}`).join("  ")}` : "";
  const unread = found.unreadable ? `${found.unreadable} reports can't be read` : "";
  about.textContent = [`started ${when(found.created_at)}${found.owner ? ` by ${found.owner}` : ""}`, found.reason, config, found.tags.join(", "), found.notes, unread].filter(Boolean).join(" · ");
}

function trialTable(name, problem) {
  const filter = el("input", { type: "search", placeholder: "filter: lr<0.1 and status=completed", "aria-label": "filter", spellcheck: "false" });
  const error = el("p", { class: "note" }), total = el("h2", {}, "Trials"), head = el("tr"), body = el("tbody");
  const more = el("button", { class: "button", hidden: "", onclick: () => { count = 8 * count; fetchIt(); } }, "more");
  const many = me.steer ? steerMany(name) : null;
  const node = el("section", { class: "card" }, el("div", { class: "bar" }, total, filter), error, many ?? "", el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head), body)), more);
  let count = 25, sort = "", reverse = false, metrics = [], shown = new Map();

  const sortName = (text) => ({ iteration: "reports", last: `last.${metrics[0]}`, config: "", tags: "", front: "" })[text] ?? (metrics.includes(text) ? `metrics.${text}` : text);
  const fetchIt = paced(async () => {
    let found;
    const where = filter.value;
    try {
      found = await api("trials", { name, where, sort, count, ...(reverse ? { reverse: "" } : {}) });
      error.textContent = "";
    } catch (failed) { error.textContent = failed.message; many?.show("", {}); return 1000; }
    many?.show(where, found.verbs);
    total.textContent = `Trials (${number(found.total)})`;
    refill(head, found.heads.map(headOf));
    refill(body, found.rows.map(rowOf));
    shown = new Map([...body.children].map((row) => [row.dataset.id, row]));
    more.hidden = found.total <= found.rows.length || found.rows.length >= 1000;
    return Math.max(1000, 1000 * found.pause_s);
  });
  function headOf(text) {
    const by = sortName(text);
    if (!by) return el("th", {}, text);
    const mark = by === sort ? (reverse ? " ▲" : " ▼") : "";
    return el("th", {}, el("button", { onclick: () => { reverse = by === sort && !reverse; sort = by; fetchIt(); } }, text + mark));
  }
  function rowOf({ id, status: is, cells }) {
    const shownCells = cells.map((text, place_) => el("td", {}, place_ === 0 ? el("a", { href: place("e", name, id) }, text) : place_ === 1 ? status(is) : text));
    const row = el("tr", {}, shownCells);
    row.dataset.id = id;
    row.title = cells.at(-1);
    return row;
  }
  filter.addEventListener("input", () => fetchIt());
  return {
    node,
    changed(rows, summary) {
      metrics = summary.metrics;
      for (const each of rows) {
        const old = shown.get(each.id);
        if (!old) continue;
        refill(old, [...rowOf(each).children]);
        old.getAnimations().forEach((animation) => { animation.currentTime = 0; animation.play(); });
        old.className = "changed";
      }
      fetchIt();
    },
    end: () => fetchIt.stop(),
  };
}

// Buttons, if the page may steer.

const ENDS = new Set(["stop", "complete", "abandon", "fail", "end"]);

const answer = () => el("p", { class: "note", role: "status" });

// Buttons for what may be asked, by their names; the answer comes into an element.
function steering(requests, said) {
  return Object.entries(requests).map(([name, request]) => el("button", { class: "button", onclick: async () => {
    const wanted = request();
    if ((ENDS.has(wanted.verb) || wanted.count) && !confirm(question(name, wanted))) return;
    said.textContent = "…";
    try { said.textContent = (await api("steer", {}, wanted)).text; } catch (error) { said.textContent = error.message; }
  } }, name));
}

function question(name, { trial, count, where, verb, name: experiment }) {
  if (count) return `${verb} ${count === 1 ? "1 trial" : `${number(count)} trials`} of ${experiment}${where ? ` with ${where}` : ""}?`;
  return `${name} ${trial ? `trial ${trial}` : experiment}?`;
}

// The buttons for all trials that a filter selects, each with how many it is for; those of the last answer, with its filter.
function steerMany(name) {
  const bar = el("div", { class: "bar" }), said = answer(), node = el("div", {}, bar, said);
  let where = "", counts = {};
  node.show = (filter, verbs) => {
    where = filter;
    counts = verbs;
    const request = (verb) => () => ({ name, verb, where, count: counts[verb] });
    refill(bar, steering(Object.fromEntries(Object.entries(verbs).map(([verb, count]) => [`${verb} ${number(count)}`, request(verb)])), said));
  };
  return node;
}

function steerExperiment(name) {
  const limit = (title) => el("input", { type: "number", min: "1", placeholder: title, "aria-label": title });
  const trials = limit("max trials"), slots = limit("max at once"), said = answer();
  const value = (input) => (input.value ? Number(input.value) : null);
  const buttons = steering({
    set: () => ({ name, verb: "set", max_trials: value(trials), max_concurrent: value(slots) }),
    end: () => ({ name, verb: "end" }), "end now": () => ({ name, verb: "end", now: true }),
  }, said);
  return el("section", { class: "card" }, el("div", { class: "bar" }, trials, slots, ...buttons), said);
}

// The buttons for a trial; they are made again only when others may be asked.
function steerTrial(name, trial) {
  const bar = el("div", { class: "bar" }), said = answer(), node = el("div", {}, bar, said);
  let last = "";
  node.show = (verbs) => {
    if (verbs.join() === last) return;
    last = verbs.join();
    bar.replaceChildren(...steering(Object.fromEntries(verbs.map((verb) => [verb, () => ({ name, trial, verb })])), said));
  };
  return node;
}

function trialPage(name, id) {
  const problem = el("p", { class: "problem" }), head = el("div"), details = el("div"), buttons = me.steer ? steerTrial(name, id) : null;
  const curves = picture({ name, kind: "trial", trial: id }, "Metrics", { class: "wide" });
  const log = logCard(name, id), ran = provenanceCard(name, id), why = reason({ name, trial: id }), usage = usageCard(name, id);
  main.replaceChildren(el("h1", {}, el("a", { href: place("e", name) }, name), ` / trial ${id}`), problem, why.node, head, buttons ?? "", el("div", { class: "grid" }, curves), usage.node, details, ran.node, log.node);
  const fetchIt = paced(async () => {
    try {
      const found = await api("trial", { name, trial: id });
      showTrial(found, head, details, log);
      ran.show(found.ran_with);
      buttons?.show(found.verbs);
    } catch (error) { problem.textContent = error.message; return 2000; }
    return FASTEST_MS;
  });
  fetchIt();
  let first = true;
  const end = stream("events", { name }, ({ summary, rows }) => {
    problem.textContent = summary.problem;
    show(summary.problem ? "off" : "on", summary.problem ? "no news" : summary.state);
    if (first || rows.some((each) => each.id === id)) { fetchIt(); curves.changed(); }
    first = false;
  });
  return () => { end(); why.end(); usage.end(); fetchIt.stop(); curves.end(); log.end(); };
}

function showTrial(found, head, details, log) {
  const run = found.attempts.reduce((sum, each) => sum + (each.started_at ? (each.ended_at ?? Date.now() / 1000) - each.started_at : 0), 0);
  refill(head, [
    el("div", { class: "tiles" }, tile(status(found.status), found.reason || "status"), found.best === null ? null : tile(number(found.best), "best value", "best"),
      tile(number(found.reports), found.late_reports ? `reports, ${found.late_reports} late` : "reports"), tile(lasted(run), "ran"), tile(number(found.attempts.length), "attempts")),
    found.tags.length || found.notes ? el("p", { class: "note" }, [found.tags.join(", "), found.notes].filter(Boolean).join(" · ")) : null,
  ]);
  const compares = found.config.some((each) => each.best !== null);
  const config = el("table", {}, el("thead", {}, el("tr", {}, ["parameter", "value", ...(compares ? [el("a", { href: place("e", found.experiment, found.best_trial) }, `best: trial ${found.best_trial}`)] : [])].map((text) => el("th", {}, text)))),
    el("tbody", {}, found.config.map((each) => el("tr", { class: each.differs ? "differs" : "" }, el("td", {}, each.name), el("td", { class: "wrap" }, each.value), compares ? el("td", { class: "wrap" }, each.best) : null))));
  const pairs = (values) => table(["metric", "value"], values.map(([key, value]) => [key, value]));
  const attempts = found.attempts.map((each) => [
    number(each.attempt), each.worker, each.devices.join(","), number(each.pid || ""), when(each.started_at), each.started_at ? lasted((each.ended_at ?? Date.now() / 1000) - each.started_at) : each.worker === "outside" ? "" : "waits",
    each.end ? words(each.end) : "", each.signal !== null ? `signal ${each.signal}` : each.exit_code !== null ? `code ${each.exit_code}` : "", each.source ? `from trial ${each.source}` : each.checkpoint,
  ]);
  const errors = found.attempts.filter((each) => each.error).map((each) => card(`Error of attempt ${each.attempt}`, el("pre", { class: "log" }, each.error)));
  refill(details, [
    el("div", { class: "grid" }, card("Config", el("div", { class: "scroll" }, config)), card("Metrics at its best", pairs(found.metrics)),
      found.checkpoints.length ? card("Checkpoints", table(["id", "saved", "metrics"], found.checkpoints.map((each) => [each.id, when(each.at), each.metrics.map(([key, value]) => `${key}=${value}`).join(" ")]))) : null),
    card("Attempts", table(["", "worker", "devices", "process", "started", "ran", "end", "exit", "began with"], attempts)), ...errors,
  ]);
  log.attempts(found.attempts.length);
}

// What each attempt ran with, and on click its code.
function provenanceCard(name, trial) {
  const ran = el("div"), said = answer(), files = el("div", { class: "files" }), text = el("pre", { class: "log", hidden: "", tabindex: "0" });
  const node = el("section", { class: "card", hidden: "" }, el("h2", {}, "Ran with"), ran, said, files, text);
  const ask = async (attempt, more) => {
    said.textContent = "…";
    try {
      const found = await api("code", { name, trial, attempt, ...more });
      said.textContent = "";
      return found;
    } catch (error) { said.textContent = error.message; return null; }
  };
  const link = (label, onclick) => el("button", { class: "link", onclick }, label);
  const read = async (attempt, file) => {
    const found = await ask(attempt, { file });
    if (!found) return;
    said.textContent = found.file;
    text.hidden = false;
    text.textContent = found.text || "an empty file";
    text.scrollTop = 0;
  };
  const list = async (attempt) => {
    const found = await ask(attempt);
    if (!found) return;
    const of = found.total > found.files.length ? `the first ${number(found.files.length)} of ${number(found.total)} files` : found.total === 1 ? "1 file" : `${number(found.total)} files`;
    said.textContent = found.bundle ? `attempt ${attempt} ran bundle ${found.bundle}, ${of}` : `attempt ${attempt} ran code that its worker had; the experiment began with ${of}`;
    text.hidden = true;
    refill(files, [table(["file", ""], found.files.map(([path, is]) => [found.bundle ? link(path, () => read(attempt, path)) : path, is]))]);
  };
  return {
    node,
    show(attempts) {
      node.hidden = !attempts.length;
      refill(ran, [table(["attempt", "Python", "mqtune", "system", "code", "packages"], attempts.map((each) => [
        number(each.attempt), each.python, each.mqtune, each.platform,
        el("td", {}, link(each.bundle ? `bundle ${each.bundle.slice(0, 12)}` : each.code || "files", () => list(each.attempt)), each.differs ? ` differs: ${each.differs}` : ""),
        el("td", { class: "wrap" }, each.packages.map(([key, value]) => `${key} ${value}`).join(", ")),
      ]))]);
    },
  };
}

function logCard(name, trial) {
  const MOST = 400000;
  const output = el("pre", { class: "log", tabindex: "0" }), which = el("select", { "aria-label": "output" }), attempt = el("select", { "aria-label": "attempt" });
  which.append(el("option", {}, "stdout"), el("option", {}, "stderr"));
  const node = el("section", { class: "card" }, el("div", { class: "bar" }, el("h2", {}, "Output"), attempt, which), output);
  let end = () => {}, count = 0, closed = false;
  const follow = () => {
    end();
    output.replaceChildren();
    if (!count || closed) return;
    end = stream("log", { name, trial, stream: which.value, attempt: attempt.value }, ({ text }) => {
      const isAtEnd = output.scrollTop + output.clientHeight >= output.scrollHeight - 20;
      output.append(text);
      while (output.childNodes.length > 1 && output.textContent.length > MOST) output.firstChild.remove();
      if (isAtEnd) output.scrollTop = output.scrollHeight;
    });
  };
  which.addEventListener("change", follow);
  attempt.addEventListener("change", follow);
  return {
    node,
    attempts(number_) {
      if (number_ === count) return;
      count = number_;
      attempt.replaceChildren(...Array.from({ length: number_ }, (_, place_) => el("option", { value: place_ + 1 }, `attempt ${place_ + 1}`)));
      attempt.value = String(number_);
      attempt.hidden = number_ < 2;
      follow();
    },
    end() { closed = true; end(); },
  };
}

function fleetPage() {
  const problem = el("p", { class: "problem" }), tiles = el("div", { class: "tiles" }), lists = el("div");
  main.replaceChildren(el("h1", {}, "Fleet"), problem, tiles, lists);
  show("", "");
  return poll(2, async () => {
    let found;
    try { found = await api("fleet"); } catch (error) { problem.textContent = error.message; return; }
    problem.textContent = found.problems.join(" · ");
    const sum = (key) => found.workers.reduce((total, each) => total + (typeof each[key] === "number" ? each[key] : 0), 0);
    const gpus = found.workers.reduce((total, each) => total + (each.gpus ? each.devices.length : 0), 0);
    tiles.replaceChildren(tile(number(found.workers.length), "workers"), tile(`${sum("busy")} of ${sum("slots")}`, "slots busy"), tile(number(gpus), "GPUs"), tile(number(found.runs.length), "running attempts"));
    const runs = found.runs.map((each) => [each.worker, each.devices, el("a", { href: place("e", each.experiment) }, each.experiment), el("a", { href: place("e", each.experiment, each.trial) }, each.trial), lasted(found.now - each.since), number(each.reports), each.best === null ? "" : number(each.best), each.use_text]);
    const workers = found.workers.map((each) => [each.name, `${each.busy} of ${each.slots}`, each.gpus ? each.devices.join(",") : "", lasted(found.now - each.joined_at), each.queue, el("td", { class: "wrap" }, each.impaired)]);
    const queues = found.queues.map((each) => [each.queue, number(each.workers), `${each.busy} of ${each.slots}`, each.waiting === null ? "needs a driver's account" : number(each.waiting)]);
    const shares = found.shares.map((each) => [
      each.experiment ? el("a", { href: place("e", each.experiment) }, each.experiment) : "another experiment", each.priority || "nobody drives it", each.priority ? number(each.share) : "",
      number(each.running), number(each.wanted), number(each.may_run), each.waiting_s ? lasted(each.waiting_s) : "", el("td", { class: "wrap" }, each.quotas),
    ]);
    const quotas = found.quotas.map((each) => [el("td", { class: "wrap" }, each.pattern), `${number(each.running)} of ${number(each.slots)}`]);
    const waiting = found.waiting.map((each) => [el("a", { href: place("e", each.experiment) }, each.experiment), number(each.waiting), el("td", { class: "wrap" }, because(each))]);
    lists.replaceChildren(
      waiting.length ? card("What waits", table(["experiment", "trials", "why"], waiting)) : "",
      shares.length ? card("Shares", table(["experiment", "priority", "share", "runs", "wants", "may run", "no slot for", "quotas"], shares)) : "",
      quotas.length ? card("Quotas", table(["experiments", "run"], quotas)) : "",
      card("What runs where", runs.length ? table(["worker", "devices", "experiment", "trial", "runs for", "reports", "best", "use"], runs) : el("p", { class: "note" }, "nothing is running")),
      card("Workers", workers.length ? table(["name", "busy", "GPUs", "up", "queue", "what is wrong"], workers) : el("p", { class: "note" }, "no worker is connected; start one: mqtune worker")),
      card("Queues", queues.length ? table(["queue", "workers", "busy", "waiting"], queues) : el("p", { class: "note" }, "no queue")),
    );
  });
}

function login(why) {
  close();
  close = () => {};
  const token = el("input", { type: "password", "aria-label": "token", autocomplete: "off" }), error = el("p", { class: "note" }, why);
  const enter = async (event) => {
    event.preventDefault();
    try { await api("login", {}, { token: token.value.replace(/.*#token=/, "").replace(/\/.*/, "").trim() }); route(); } catch (failed) { error.textContent = failed.message; }
  };
  main.replaceChildren(el("h1", {}, "mqtune"), el("form", { class: "card", onsubmit: enter }, error, el("div", { class: "bar" }, token, el("button", { class: "button" }, "Open"))));
  show("", "");
}

// What somebody typed may not be encoded.
function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

async function route() {
  const turn = ++turns;
  left.abort();
  left = new AbortController();
  close();
  close = () => {};
  const given = location.hash.match(/^#token=([\w-]+)(.*)$/);
  if (given) {
    history.replaceState(null, "", `#${given[2] || "/"}`);
    entering = api("login", {}, { token: given[1] });
  }
  try { await entering; } catch (error) { entering = undefined; login(error.message); return; }
  try { me = await api("me"); } catch (error) { if (error.status !== 401) main.replaceChildren(el("p", { class: "problem" }, error.message)); return; }
  // Somebody may have gone on while the server was asked.
  if (turn !== turns) return;
  const [kind, name, trial] = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  document.title = [trial, name, "mqtune"].filter(Boolean).join(" · ");
  scrollTo(0, 0);
  close = kind === "fleet" ? fleetPage() : kind === "e" && trial ? trialPage(name, /^\d+$/.test(trial) ? trial.padStart(4, "0") : trial) : kind === "e" ? experimentPage(name) : experimentsPage();
}

addEventListener("hashchange", route);
route();
