// Buttons that ask a driver for something, and the question before it: for how many it is, and whether it can be undone.
import { button, counted, el, number } from "./elements.js";
import { api } from "./server.js";

const LAST = "This can't be undone.";
// What becomes of trials by each verb; who asks for what can't be undone is asked first, and so is who asks it of many.
const EFFECTS = {
  stop: ["It ends as stopped early, with the values that it has.", LAST],
  pause: ["It saves a checkpoint, and its slot becomes free.", "Resume undoes this."],
  resume: ["It goes on from its newest checkpoint as soon as it has a slot.", "Pause undoes this."],
  restart: ["It begins again from scratch; what it has reported stays.", LAST],
  save: ["It saves a checkpoint as soon as it can, and goes on.", ""],
  complete: ["It ends as completed, with the values that it has.", LAST],
  abandon: ["It ends, counts no more, and its config is never proposed again.", LAST],
  fail: ["It ends as failed, and is not tried again.", LAST],
  end: ["No other trial starts; those that run go on to their end.", LAST],
  "end now": ["No other trial starts, and those that run are stopped.", LAST],
};
const SHOWN = 12;

// Asks a question in a dialog of the page; returns whether the answer is the button's.
export function sure(title, lines, text) {
  const close = (answer_) => () => node.close(answer_);
  const node = el("dialog", { class: "card" }, el("h2", {}, title), ...lines.filter(Boolean).map((line) => el("p", {}, line)),
    el("div", { class: "bar" }, button("cancel", close("")), button(text, close("yes"), { class: "button main" })));
  document.body.append(node);
  node.showModal();
  return new Promise((answered) => node.addEventListener("close", () => { node.remove(); answered(node.returnValue === "yes"); }));
}

export const answer = () => el("p", { class: "note", role: "status" });

async function ask(wanted, said) {
  said.textContent = "…";
  try { said.textContent = (await api("steer", {}, wanted)).text; } catch (error) { said.textContent = error.message; }
}

// A button for a verb of one trial, or of the experiment.
export function verbButton(verb, wanted, said, running) {
  const [effect, undo] = EFFECTS[verb];
  return button(verb, async () => {
    const whom = wanted.trial ? `trial ${wanted.trial}` : wanted.name;
    const now = verb.startsWith("end") ? `${counted(running?.() ?? 0, "trial")} ${running?.() === 1 ? "runs" : "run"} now. ` : "";
    if (undo === LAST && !(await sure(`${verb} ${whom}?`, [now + effect, undo], `${verb} ${whom}`))) return;
    await ask(wanted, said);
  });
}

// A button for a verb of several trials, which are asked for when it is pressed.
export function manyButton(name, verb, trials, said) {
  const many = counted(trials.length, "trial");
  return button(`${verb} ${number(trials.length)}`, async () => {
    const shown = trials.slice(0, SHOWN).join(", ") + (trials.length > SHOWN ? ` and ${number(trials.length - SHOWN)} more` : "");
    const [effect, undo] = EFFECTS[verb];
    const each = trials.length === 1 ? effect : `Each of them: ${effect[0].toLowerCase()}${effect.slice(1)}`;
    if (await sure(`${verb} ${many} of ${name}?`, [shown, each, undo], `${verb} ${many}`)) await ask({ name, verb, trials }, said);
  });
}

export function limitsCard(name, running) {
  const limit = (title) => el("input", { type: "number", min: "1", placeholder: title, "aria-label": title });
  const trials = limit("max trials"), slots = limit("max at once"), said = answer();
  const value = (input) => (input.value ? Number(input.value) : null);
  const set = button("set", () => ask({ name, verb: "set", max_trials: value(trials), max_concurrent: value(slots) }, said));
  const ends = [verbButton("end", { name, verb: "end" }, said, running), verbButton("end now", { name, verb: "end", now: true }, said, running)];
  return el("section", { class: "card slim" }, el("div", { class: "bar" }, trials, slots, set, ...ends, said));
}

// The buttons for a trial; they are made again only when others may be asked.
export function trialButtons(name, trial) {
  const bar = el("div", { class: "bar" }), said = answer(), node = el("div", {}, bar, said);
  let last = "";
  node.show = (verbs) => {
    if (verbs.join() === last) return;
    last = verbs.join();
    bar.replaceChildren(...verbs.map((verb) => verbButton(verb, { name, trial, verb }, said)));
  };
  return node;
}
