// The page of one trial: why it waits, its config beside the best trial's, its curves, attempts, code and output.
import { card, collapsible, el, place, plain, refill, star, status, table, words } from "./elements.js";
import { ago, exact, isVirtual, lasted, number } from "./format.js";
import { api, paced, poll, problem, stream } from "./server.js";
import { labels } from "./labels.js";
import { picture } from "./chart.js";
import { reason } from "./attention.js";
import { trialButtons } from "./steering.js";

const FASTEST_MS = 200;

const wrapped = (text) => el("td", { class: "wrap" }, text);
const when = (at) => (at ? el("td", { title: exact(at) }, isVirtual(at) ? "virtual time" : ago(at)) : "");

// Returns a card with how each attempt uses or used its machine, and warnings about idle GPUs.
function usageCard(name, trial) {
  const warnings = el("div", { role: "status" }),
    rows = el("div"),
    node = card("Usage", { hidden: "" }, warnings, rows);
  const end = poll(5, async () => {
    let found;
    try {
      found = await api("usage", { name, trial });
    } catch {
      return;
    }
    node.hidden = !found.attempts.length;
    refill(
      warnings,
      found.attempts.filter((each) => each.warning).map((each) => el("p", { class: "warn-text" }, each.warning)),
    );
    refill(rows, [
      table(
        [["attempt", "right"], "now", "until now, or in total", ""],
        found.attempts.map((each) => [number(each.attempt), ...[each.now, each.usage, each.sharing].map(wrapped)]),
      ),
    ]);
  });
  return { node, end };
}

export function trialPage(main, name, id) {
  const state = el("span", { class: "state" }),
    why = reason({ name, trial: id }),
    who = el("p", { class: "who" }),
    actions = el("span", { class: "actions" }),
    labelled = labels(name, id);
  const config = el("div"),
    details = el("div", { class: "stack" });
  const curves = picture("picture", { name, kind: "trial", trial: id }, "Metrics"),
    log = logCard(name, id),
    files = filesCard(name, id),
    ran = provenanceCard(name, id),
    usage = usageCard(name, id);
  main.replaceChildren(
    el(
      "div",
      { class: "head" },
      el("h1", {}, el("a", { href: place("e", name) }, name), ` / trial ${id}`),
      state,
      labelled.tags,
      actions,
    ),
    who,
    why.node,
    labelled.notes,
    el("div", { class: "stack" }, el("div", { class: "pair" }, card("Config", {}, config), curves), usage.node),
    details,
    el("div", { class: "stack" }, files.node, ran.node, log.node),
  );
  let verbs = "";
  const fetchIt = paced(async () => {
    try {
      const found = await api("trial", { name, trial: id });
      showTrial(found);
      labelled.show(found);
      ran.show(found.ran_with);
    } catch (error) {
      if (!error.away) problem(error.message);
      return 2000;
    }
    return FASTEST_MS;
  });
  function showTrial(found) {
    const seconds = found.attempts.reduce(
      (sum, each) => sum + (each.started_at ? (each.ended_at ?? Date.now() / 1000) - each.started_at : 0),
      0,
    );
    state.replaceChildren(status(found.status), ...(found.best_trial === id ? [star()] : []));
    const part = (label, value, more = "") => el("span", {}, label ? `${label} ` : "", el("b", {}, value), more);
    refill(who, [
      found.reason ? el("span", {}, found.reason) : null,
      found.best === null ? null : part("best", number(found.best)),
      part(
        "",
        number(found.reports),
        found.late_reports
          ? ` reports, ${number(found.late_reports)} of them late`
          : found.reports === 1
            ? " report"
            : " reports",
      ),
      part("duration", lasted(seconds)),
      part("", number(found.attempts.length), found.attempts.length === 1 ? " attempt" : " attempts"),
    ]);
    if (found.status !== verbs) {
      verbs = found.status;
      const copy = () =>
        navigator.clipboard?.writeText(found.config.map((each) => `${each.name}=${each.value}`).join(" "));
      const parts = trialButtons(name, [{ id, status: found.status }], [["Copy config", copy]]);
      actions.replaceChildren(...collapsible(parts, `actions of trial ${id}`));
    }
    const compares = found.config.some((each) => each.best !== null);
    const heads = ["parameter", "value", ...(compares ? [`best: trial ${found.best_trial}`] : [])];
    const shown = table(
      heads,
      found.config.map((each) => [
        each.name,
        el("td", { class: each.differs ? "wrap strong" : "wrap" }, each.value),
        ...(compares ? [wrapped(each.best)] : []),
      ]),
      { "aria-label": "config" },
    );
    shown
      .querySelectorAll("tbody tr")
      .forEach((row, index) => row.classList.toggle("differs", found.config[index].differs));
    refill(config, [shown]);
    const pairs = (values) =>
      table(
        ["metric", ["value", "right"]],
        values.map(([key, value, full]) => [
          key,
          el("td", { class: "right", title: value === full ? null : full }, value),
        ]),
      );
    const attempts = found.attempts.flatMap((each) => [
      [
        number(each.attempt),
        each.worker,
        each.devices.join(","),
        number(each.pid || ""),
        when(each.started_at),
        each.started_at
          ? lasted((each.ended_at ?? Date.now() / 1000) - each.started_at)
          : each.worker === "outside"
            ? ""
            : "waits",
        each.end ? words(each.end) : "",
        each.signal !== null ? `signal ${each.signal}` : each.exit_code !== null ? `code ${each.exit_code}` : "",
        each.source ? `from trial ${each.source}` : each.checkpoint,
      ],
      ...each.seats.map((seat) => [`seat ${seat.seat}`, seat.worker, seat.devices.join(","), "", "", "", "", "", ""]),
    ]);
    const errors = found.attempts
      .filter((each) => each.error)
      .map((each) =>
        card(
          `Error of attempt ${each.attempt}`,
          {},
          el("pre", { class: "log", tabindex: "0", role: "region", "aria-label": "error" }, each.error),
        ),
      );
    refill(details, [
      ...errors,
      el(
        "div",
        { class: "pair" },
        card("Metrics at its best", {}, pairs(found.metrics)),
        found.checkpoints.length
          ? card(
              "Checkpoints",
              {},
              table(
                ["id", "saved", "metrics"],
                found.checkpoints.map((each) => [
                  plain(each.id, () => files.show(each.id)),
                  when(each.at),
                  wrapped(each.metrics.map(([key, value]) => `${key}=${value}`).join(" ")),
                ]),
              ),
            )
          : null,
      ),
      card(
        "Attempts",
        {},
        table(
          [
            ["attempt", "right"],
            "worker",
            "devices",
            ["process", "right"],
            "started",
            ["duration", "right"],
            "end",
            "exit",
            "started from",
          ],
          attempts,
        ),
      ),
    ]);
    log.attempts(found.attempts.map((each) => each.seats.length));
  }
  fetchIt();
  let first = true;
  const end = stream(
    "events",
    { name },
    ({ summary, rows }) => {
      problem(summary.problem);
      if (first || rows.some((each) => each.id === id)) {
        fetchIt();
        curves.changed();
      }
      first = false;
    },
    (text) => refill(who, [el("span", {}, text)]),
  );
  return {
    end: () => {
      end();
      why.end();
      usage.end();
      fetchIt.stop();
      curves.end();
      log.end();
    },
  };
}

// Returns a card with the files of a checkpoint, which is hidden until one is chosen.
function filesCard(name, trial) {
  const said = el("p", { class: "note", role: "status" }),
    files = el("div", { class: "files" }),
    node = card("Files of a checkpoint", { hidden: "" }, said, files);
  const show = async (id) => {
    node.hidden = false;
    said.textContent = "reading";
    files.replaceChildren();
    try {
      const found = await api("checkpoint", { name, trial, id });
      said.textContent = `${id}: ${found.total === 1 ? "1 file" : `${number(found.total)} files`}, ${found.size}`;
      files.append(table(["file", ["size", "right"]], found.files));
    } catch (error) {
      said.textContent = error.message;
    }
  };
  return { node, show };
}

// Returns a card with the versions that each attempt ran with. A click shows its code.
function provenanceCard(name, trial) {
  const ran = el("div"),
    said = el("p", { class: "note", role: "status" }),
    files = el("div", { class: "files" }),
    text = el("pre", { class: "log", hidden: "", tabindex: "0" });
  const node = card("Ran with", { hidden: "" }, ran, said, files, text);
  const ask = async (attempt, more) => {
    said.textContent = "reading";
    try {
      const found = await api("code", { name, trial, attempt, ...more });
      said.textContent = "";
      return found;
    } catch (error) {
      said.textContent = error.message;
      return null;
    }
  };
  const link = (label, onclick) => plain(label, onclick);
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
    const of =
      found.total > found.files.length
        ? `the first ${number(found.files.length)} of ${number(found.total)} files`
        : found.total === 1
          ? "1 file"
          : `${number(found.total)} files`;
    said.textContent = found.bundle
      ? `attempt ${attempt} ran bundle ${found.bundle}, ${of}`
      : `attempt ${attempt} ran code that was already on its worker; the experiment began with ${of}`;
    text.hidden = true;
    refill(files, [
      table(
        ["file", ""],
        found.files.map(([path, is]) => [found.bundle ? link(path, () => read(attempt, path)) : path, is]),
      ),
    ]);
  };
  return {
    node,
    show(attempts) {
      node.hidden = !attempts.length;
      refill(ran, [
        table(
          ["attempt", "Python", "mqtune", "system", "code", "packages"],
          attempts.map((each) => [
            number(each.attempt),
            each.python,
            each.mqtune,
            each.platform,
            el(
              "td",
              {},
              link(each.bundle ? `bundle ${each.bundle.slice(0, 12)}` : each.code || "files", () => list(each.attempt)),
              each.differs ? ` differs: ${each.differs}` : "",
            ),
            el("td", { class: "wrap" }, each.packages.map(([key, value]) => `${key} ${value}`).join(", ")),
          ]),
        ),
      ]);
    },
  };
}

function logCard(name, trial) {
  const MOST = 400000;
  const output = el("pre", { class: "log", tabindex: "0", role: "region", "aria-label": "output" }),
    which = el("select", { class: "button", "aria-label": "output" }),
    attempt = el("select", { class: "button", "aria-label": "attempt" }),
    seat = el("select", { class: "button", "aria-label": "seat" });
  which.append(el("option", {}, "stdout"), el("option", {}, "stderr"));
  const node = card("Output", { controls: el("span", { class: "bar" }, attempt, seat, which) }, output);
  let end = () => {},
    count = 0,
    further = [],
    closed = false;
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
  // Fills the choice of seats. An attempt that has not begun has only seat 0.
  const seats = () => {
    const most = further[attempt.value - 1];
    if (seat.length !== most + 1)
      offer(
        seat,
        Array.from({ length: most + 1 }, (_, place_) => place_),
        "seat",
        Math.min(most, seat.value),
      );
  };
  which.addEventListener("change", follow);
  seat.addEventListener("change", follow);
  attempt.addEventListener("change", () => {
    seats();
    follow();
  });
  return {
    node,
    attempts(further_) {
      further = further_;
      if (further.length === count) {
        if (count) seats();
        return;
      }
      count = further.length;
      offer(
        attempt,
        Array.from({ length: count }, (_, place_) => place_ + 1),
        "attempt",
        count,
      );
      seats();
      follow();
    },
    end() {
      closed = true;
      end();
    },
  };
}
