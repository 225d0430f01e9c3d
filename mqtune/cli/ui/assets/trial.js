// One trial: why it waits, its config beside the best one's, its metrics, attempts, code and output.
import { card, el, lasted, number, place, refill, status, table, tile, when, words } from "./elements.js";
import { api, me, paced, poll, problem, showState, stream } from "./server.js";
import { answer, trialButtons } from "./steering.js";
import { labels } from "./labels.js";
import { picture } from "./chart.js";
import { reason } from "./why.js";

const FASTEST_MS = 200;

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

export function trialPage(main, name, id) {
  const head = el("div"), details = el("div"), buttons = me.steer ? trialButtons(name, id) : null, labelled = labels(name, id);
  const curves = picture("picture", { name, kind: "trial", trial: id }, "Metrics", { wide: true });
  const log = logCard(name, id), ran = provenanceCard(name, id), why = reason({ name, trial: id }), usage = usageCard(name, id);
  main.replaceChildren(el("h1", {}, el("a", { href: place("e", name) }, name), ` / trial ${id}`), why.node, head, labelled, buttons ?? "", el("div", { class: "grid" }, curves), usage.node, details, ran.node, log.node);
  const fetchIt = paced(async () => {
    try {
      const found = await api("trial", { name, trial: id });
      showTrial(found, head, details, log);
      labelled.show(found);
      ran.show(found.ran_with);
      buttons?.show(found.verbs);
    } catch (error) { if (!error.away) problem(error.message); return 2000; }
    return FASTEST_MS;
  });
  fetchIt();
  let first = true;
  const end = stream("events", { name }, ({ summary, rows }) => {
    problem(summary.problem);
    showState(summary);
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
  ]);
  const compares = found.config.some((each) => each.best !== null);
  const config = el("table", {}, el("thead", {}, el("tr", {}, ["parameter", "value", ...(compares ? [el("a", { href: place("e", found.experiment, found.best_trial) }, `best: trial ${found.best_trial}`)] : [])].map((text) => el("th", {}, text)))),
    el("tbody", {}, found.config.map((each) => el("tr", { class: each.differs ? "differs" : "" }, el("td", {}, each.name), el("td", { class: "wrap" }, each.value), compares ? el("td", { class: "wrap" }, each.best) : null))));
  const pairs = (values) => table(["metric", "value"], values.map(([key, value, exact]) => [key, el("td", { title: value === exact ? null : exact }, value)]));
  const attempts = found.attempts.flatMap((each) => [[
    number(each.attempt), each.worker, each.devices.join(","), number(each.pid || ""), when(each.started_at), each.started_at ? lasted((each.ended_at ?? Date.now() / 1000) - each.started_at) : each.worker === "outside" ? "" : "waits",
    each.end ? words(each.end) : "", each.signal !== null ? `signal ${each.signal}` : each.exit_code !== null ? `code ${each.exit_code}` : "", each.source ? `from trial ${each.source}` : each.checkpoint,
  ], ...each.seats.map((seat) => [`seat ${seat.seat}`, seat.worker, seat.devices.join(","), "", "", "", "", "", ""])]);
  const errors = found.attempts.filter((each) => each.error).map((each) => card(`Error of attempt ${each.attempt}`, el("pre", { class: "log" }, each.error)));
  refill(details, [
    el("div", { class: "grid" }, card("Config", el("div", { class: "scroll" }, config)), card("Metrics at its best", pairs(found.metrics)),
      found.checkpoints.length ? card("Checkpoints", table(["id", "saved", "metrics"], found.checkpoints.map((each) => [each.id, when(each.at), el("td", { class: "wrap" }, each.metrics.map(([key, value]) => `${key}=${value}`).join(" "))]))) : null),
    card("Attempts", table(["attempt", "worker", "devices", "process", "started", "ran", "end", "exit", "began with"], attempts)), ...errors,
  ]);
  log.attempts(found.attempts.map((each) => each.seats.length));
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
  const output = el("pre", { class: "log", tabindex: "0" }), which = el("select", { "aria-label": "output" }), attempt = el("select", { "aria-label": "attempt" }), seat = el("select", { "aria-label": "seat" });
  which.append(el("option", {}, "stdout"), el("option", {}, "stderr"));
  const node = el("section", { class: "card" }, el("div", { class: "bar" }, el("h2", {}, "Output"), attempt, seat, which), output);
  let end = () => {}, count = 0, further = [], closed = false;
  const follow = () => {
    end();
    output.replaceChildren();
    if (!count || closed) return;
    const from = seat.value === "0" ? trial : `${trial}~${seat.value}`;
    end = stream("log", { name, trial: from, stream: which.value, attempt: attempt.value }, ({ text }) => {
      const isAtEnd = output.scrollTop + output.clientHeight >= output.scrollHeight - 20;
      output.append(text);
      while (output.childNodes.length > 1 && output.textContent.length > MOST) output.firstChild.remove();
      if (isAtEnd) output.scrollTop = output.scrollHeight;
    });
  };
  const offer = (select, values, word, chosen) => {
    select.replaceChildren(...values.map((value) => el("option", { value }, `${word} ${value}`)));
    select.value = String(chosen);
    select.hidden = values.length < 2;
  };
  // An attempt that has not begun has no further seats yet.
  const seats = () => {
    const most = further[attempt.value - 1];
    if (seat.length !== most + 1) offer(seat, Array.from({ length: most + 1 }, (_, place_) => place_), "seat", Math.min(most, seat.value));
  };
  which.addEventListener("change", follow);
  seat.addEventListener("change", follow);
  attempt.addEventListener("change", () => { seats(); follow(); });
  return {
    node,
    attempts(further_) {
      further = further_;
      if (further.length === count) { if (count) seats(); return; }
      count = further.length;
      offer(attempt, Array.from({ length: count }, (_, place_) => place_ + 1), "attempt", count);
      seats();
      follow();
    },
    end() { closed = true; end(); },
  };
}

