// Buttons that send requests to an experiment's driver, and the questions before them.
import { button, el, menu } from "./elements.js";
import { counted, number } from "./format.js";
import { api, isAway, me } from "./server.js";
import { dialog, sure, toast } from "./dialogs.js";

// For more trials than this, the user is always asked first.
const MANY = 10;
const SLOW_MS = 1000;
const SHOWN = 12;
// The four ends of a trial: verb, name and effect.
const ENDS = [
  ["stop", "Stopped early", "the searcher learns from their values"],
  ["complete", "Completed", "as if they had run to the end"],
  ["abandon", "Abandoned", "values don't count, configs are not proposed again"],
  ["fail", "Failed", "not tried again"],
];
const DONE = {
  pause: "paused",
  resume: "resumed",
  restart: "restarted",
  save: "asked to save a checkpoint",
  stop: "stopped",
  complete: "completed",
  abandon: "abandoned",
  fail: "marked as failed",
};
const UNDO = { pause: "resume", resume: "pause" };
const NONE = {
  pause: "none is running",
  resume: "none is paused",
  save: "none is running",
  restart: "all have ended",
  stop: "all have ended",
};

// Returns the trials to which an action can be applied, by their statuses.
const fitting = (verb, trials) => trials.filter(({ status }) => me.verbs[verb].includes(status));

async function request(wanted, opener) {
  const slow = setTimeout(() => {
    if (opener) {
      opener.dataset.text = opener.textContent;
      opener.textContent = "waiting…";
    }
  }, SLOW_MS);
  try {
    return await api("steer", {}, wanted);
  } catch (error) {
    return { text: error.message, done: false };
  } finally {
    clearTimeout(slow);
    if (opener?.dataset.text) opener.textContent = opener.dataset.text;
  }
}

// Requests an action on some trials, and shows the answer. If there are many trials, asks the user first.
async function act(name, verb, trials, opener) {
  if (isAway()) {
    toast("Nothing can be changed until the server answers.");
    return;
  }
  const ids = trials.map(({ id }) => id),
    many = counted(ids.length, "trial");
  if (verb === "restart" || ids.length > MANY) {
    const effect = {
      pause: "Each saves a checkpoint, and its slot becomes free. Resume undoes this.",
      resume: "Each continues from its newest checkpoint as soon as it has a slot.",
      save: "Each saves a checkpoint as soon as it can.",
      restart: "Each begins again from scratch. Its reports stay. This can't be undone.",
    }[verb];
    const title = {
      pause: `Pause ${many}?`,
      resume: `Resume ${many}?`,
      save: `Save checkpoints of ${many}?`,
      restart: `Restart ${many} from scratch?`,
    }[verb];
    const yes = {
      pause: `Pause ${many}`,
      resume: `Resume ${many}`,
      save: "Save checkpoints",
      restart: `Restart ${many}`,
    }[verb];
    if (!(await sure(title, [idsText(ids), effect], { yes, danger: verb === "restart" }))) return;
  }
  const found = await request(ids.length === 1 ? { name, verb, trial: ids[0] } : { name, verb, trials: ids }, opener);
  const undo = found.done && UNDO[verb] ? ["Undo", () => act(name, UNDO[verb], trials)] : undefined;
  toast(found.done ? `${ids.length === 1 ? `trial ${ids[0]}` : many} ${DONE[verb]}` : found.text, undo);
}

const idsText = (ids) =>
  ids.slice(0, SHOWN).join(", ") + (ids.length > SHOWN ? ` and ${number(ids.length - SHOWN)} more` : "");

// Asks the user how to end some trials, and ends them.
async function stop(name, trials, opener) {
  if (isAway()) {
    toast("Nothing can be changed until the server answers.");
    return;
  }
  const ids = trials.map(({ id }) => id),
    many = ids.length === 1 ? `trial ${ids[0]}` : counted(ids.length, "trial");
  const ends = ENDS.filter(([verb]) => fitting(verb, trials).length === trials.length);
  const verb = await sure(
    `Stop ${many}?`,
    [
      ids.length > 1 ? idsText(ids) : "",
      `${ids.length > 1 ? "They end with the values they have. Their slots go" : "It ends with the values it has. Its slot goes"} to the next trials. This can't be undone.`,
    ],
    {
      yes: `Stop ${many}`,
      no: "Keep running",
      danger: true,
      options: ends,
      name: ids.length > 1 ? "Count them as" : "Count it as",
    },
  );
  if (!verb) return;
  const found = await request(ids.length === 1 ? { name, verb, trial: ids[0] } : { name, verb, trials: ids }, opener);
  toast(found.done ? `${many} ${DONE[verb]}` : found.text);
}

// Returns the buttons for trials: Pause or Resume, Stop…, and a menu of the rest. *more* has further items of the menu.
export function trialButtons(name, trials, more = [], side = "") {
  const part = (verb) => {
    const some = fitting(verb, trials);
    return { some, label: some.length < trials.length ? ` ${number(some.length)} of ${number(trials.length)}` : "" };
  };
  const item = (text, verb) => {
    const { some } = part(verb);
    return some.length
      ? [text, () => act(name, verb, some), trials.length > 1 ? number(some.length) : ""]
      : [text, null, NONE[verb]];
  };
  const [pause, resume, stops] = ["pause", "resume", "stop"].map(part);
  const buttons = [];
  if (me.steer) {
    if (!pause.some.length && resume.some.length)
      buttons.push(button(`Resume${resume.label}`, (event) => act(name, "resume", resume.some, event.target)));
    else if (pause.some.length)
      buttons.push(button(`Pause${pause.label}`, (event) => act(name, "pause", pause.some, event.target)));
    if (stops.some.length)
      buttons.push(
        button(`Stop${stops.label}…`, (event) => stop(name, stops.some, event.target), { class: "button danger" }),
      );
  }
  const items = [
    ...(me.steer && (stops.some.length || more.length)
      ? [item("Save checkpoint", "save"), item("Restart from scratch…", "restart"), item("Resume", "resume"), null]
      : []),
    ...more,
  ];
  return [...buttons, items.length ? menu("More", items, { side }) : null].filter(Boolean);
}

// Returns the buttons in the head of an experiment.
export function experimentButtons(name, summary) {
  const limits = () => {
    const { limits: now } = summary();
    const field = (key, label) =>
      el("input", {
        type: "number",
        min: "1",
        "aria-label": label,
        value: now[key] ?? "",
        placeholder: "no limit known",
      });
    const trials = field("max_trials", "max trials"),
      slots = field("max_concurrent", "max at once"),
      error = el("p", { class: "note failed-text", role: "alert" });
    const apply = async () => {
      const changed = [
        ["max_trials", trials],
        ["max_concurrent", slots],
      ].filter(([key, box]) => box.value && Number(box.value) !== now[key]);
      const wrong = changed.find(([, box]) => !box.checkValidity());
      if (wrong) {
        error.textContent = `${wrong[1].getAttribute("aria-label")}: ${wrong[1].value} is not a whole number of at least 1`;
        return;
      }
      node.close("");
      if (!changed.length) return;
      const found = await request({
        name,
        verb: "set",
        ...Object.fromEntries(changed.map(([key, box]) => [key, Number(box.value)])),
      });
      toast(found.text);
    };
    const node = dialog(`Limits of ${name}`, [
      el("label", { class: "field" }, "max trials: the number of trials in all", trials),
      el("label", { class: "field" }, "max at once: the number of trials at the same time", slots),
      error,
      el(
        "div",
        { class: "buttons" },
        button("Cancel", () => node.close("")),
        button("Apply", apply, { class: "button primary" }),
      ),
    ]);
    trials.focus();
  };
  const end = async (event) => {
    const running = summary().counts.running ?? 0,
      many = counted(running, "running trial");
    const found = await sure(
      `End ${name}?`,
      [
        running
          ? "No further trial starts. This can't be undone."
          : "No trial is running, and no further trial starts. This can't be undone.",
      ],
      {
        yes: "End it",
        no: "Keep it going",
        danger: true,
        options: running
          ? [
              ["end", `Let ${many} finish`, "the experiment ends when they have ended"],
              ["now", running === 1 ? "Stop it now" : "Stop them now", "they end with the values they have"],
            ]
          : [],
      },
    );
    if (!found) return;
    toast((await request({ name, verb: "end", now: found === "now" }, event.target)).text);
  };
  return [button("Limits…", limits), button("End…", end)];
}
