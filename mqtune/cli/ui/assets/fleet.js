// The page of the fleet: workers, queues, shares and quotas, running trials, and why trials wait.
import { card, command, el, place, refill, table } from "./elements.js";
import { lasted, number } from "./format.js";
import { api, poll, problem } from "./server.js";

const because = (found) => [found.text, found.way_out].filter(Boolean).join(" · ");
const wrapped = (text) => el("td", { class: "wrap" }, text);
const right = (title) => [title, "right"];
const tile = (label, value, below = "") =>
  el(
    "div",
    { class: "tile" },
    el("div", { class: "label" }, label),
    el("div", { class: "value" }, value),
    el("div", { class: "below" }, below),
  );

export function fleetPage(main) {
  const strip = el("section", { class: "card strip", "aria-label": "figures" }),
    lists = el("div", { class: "stack" });
  main.replaceChildren(
    el("div", { class: "head" }, el("h1", {}, "Fleet")),
    el("div", { class: "stack" }, strip),
    lists,
  );
  const end = poll(2, async () => {
    let found;
    try {
      found = await api("fleet");
    } catch (error) {
      if (!error.away) problem(error.message);
      return;
    }
    problem(found.problems.join(" · "));
    const sum = (key) =>
      found.workers.reduce((total, each) => total + (typeof each[key] === "number" ? each[key] : 0), 0);
    // Slots may share GPUs.
    const gpusOf = (each) => [...new Set(each.devices.join(",").split(",").filter(Boolean))];
    const gpus = found.workers.reduce((total, each) => total + gpusOf(each).length, 0),
      waits = found.waiting.reduce((total, each) => total + each.waiting, 0),
      impaired = found.workers.filter((each) => each.impaired).length;
    refill(strip, [
      tile(
        "Workers",
        number(found.workers.length),
        impaired ? el("span", { class: "warn-text" }, `${number(impaired)} with a problem`) : "",
      ),
      tile("Slots", [number(sum("busy")), el("small", {}, `of ${number(sum("slots"))} busy`)]),
      tile("GPUs", number(gpus)),
      tile("Running", number(found.runs.length), "attempts"),
      tile("Waiting", number(waits), "trials"),
    ]);
    const runs = found.runs.map((each) => [
      each.worker,
      each.devices,
      el("a", { href: place("e", each.experiment) }, each.experiment),
      el("a", { href: place("e", each.experiment, each.trial) }, each.trial),
      lasted(found.now - each.since),
      number(each.reports),
      each.best === null ? "" : number(each.best),
      each.use_text,
    ]);
    const workers = [...found.workers]
      .sort((a, b) => Boolean(b.impaired) - Boolean(a.impaired))
      .map((each) => [
        each.name,
        `${number(each.busy)} of ${number(each.slots)}`,
        gpusOf(each).join(",") +
          (each.gpu_memory_gb && !each.gpus ? ` (${number(each.free_gpu_memory_gb)} GB free)` : ""),
        lasted(found.now - each.joined_at),
        each.queue,
        el("td", { class: "wrap warn-text" }, each.impaired),
      ]);
    const queues = found.queues.map((each) => [
      each.queue,
      number(each.workers),
      `${number(each.busy)} of ${number(each.slots)}`,
      each.waiting === null ? "needs a driver's account" : number(each.waiting),
    ]);
    const shares = found.shares.map((each) => [
      each.experiment ? el("a", { href: place("e", each.experiment) }, each.experiment) : "another experiment",
      each.priority || "no driver",
      each.priority ? number(each.share) : "",
      number(each.running),
      number(each.wanted),
      number(each.may_run),
      each.waiting_s ? lasted(each.waiting_s) : "",
      wrapped(each.quotas),
    ]);
    const quotas = found.quotas.map((each) => [
      wrapped(each.pattern),
      `${number(each.running)} of ${number(each.slots)}`,
    ]);
    const waiting = found.waiting.map((each) => [
      el("a", { href: place("e", each.experiment) }, each.experiment),
      number(each.waiting),
      wrapped(because(each)),
    ]);
    refill(lists, [
      waiting.length ? card("Waiting", {}, table(["experiment", right("trials"), "reason"], waiting)) : null,
      card(
        "Workers",
        {},
        workers.length
          ? table(["name", right("busy"), "GPUs", right("up"), "queue", "problem"], workers)
          : el(
              "div",
              { class: "nothing" },
              el("div", {}, el("p", {}, "no worker is connected"), command("mqtune worker")),
            ),
      ),
      card(
        "Running now",
        {},
        runs.length
          ? table(
              ["worker", "devices", "experiment", "trial", right("duration"), right("reports"), right("best"), "use"],
              runs,
            )
          : el("p", { class: "nothing" }, "nothing is running"),
      ),
      shares.length
        ? card(
            "Shares",
            {},
            table(
              [
                "experiment",
                "priority",
                right("share"),
                right("running"),
                right("wanted"),
                right("allowed"),
                right("no slot for"),
                "quotas",
              ],
              shares,
            ),
          )
        : null,
      quotas.length ? card("Quotas", {}, table(["experiments", right("running")], quotas)) : null,
      card(
        "Queues",
        {},
        queues.length
          ? table(["queue", right("workers"), right("busy"), right("waiting")], queues)
          : el("p", { class: "nothing" }, "no queue"),
      ),
    ]);
  });
  return { end };
}
