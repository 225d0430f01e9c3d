// The fleet: workers, queues, who has how much and may have, what runs where, and why what waits.
import { card, el, lasted, number, place, table, tile } from "./elements.js";
import { api, poll, problem, show } from "./server.js";
import { because } from "./why.js";

export function fleetPage(main) {
  const tiles = el("div", { class: "tiles" }), lists = el("div");
  main.replaceChildren(el("h1", {}, "Fleet"), tiles, lists);
  show("", "");
  return poll(2, async () => {
    let found;
    try { found = await api("fleet"); } catch (error) { if (!error.away) problem(error.message); return; }
    problem(found.problems.join(" · "));
    const sum = (key) => found.workers.reduce((total, each) => total + (typeof each[key] === "number" ? each[key] : 0), 0);
    // Slots may share them.
    const gpusOf = (each) => [...new Set(each.devices.join(",").split(",").filter(Boolean))];
    const gpus = found.workers.reduce((total, each) => total + gpusOf(each).length, 0);
    tiles.replaceChildren(tile(number(found.workers.length), "workers"), tile(`${sum("busy")} of ${sum("slots")}`, "slots busy"), tile(number(gpus), "GPUs"), tile(number(found.runs.length), "running attempts"));
    const runs = found.runs.map((each) => [each.worker, each.devices, el("a", { href: place("e", each.experiment) }, each.experiment), el("a", { href: place("e", each.experiment, each.trial) }, each.trial), lasted(found.now - each.since), number(each.reports), each.best === null ? "" : number(each.best), each.use_text]);
    const workers = found.workers.map((each) => [each.name, `${each.busy} of ${each.slots}`, gpusOf(each).join(",") + (each.gpu_memory_gb && !each.gpus ? ` (${number(each.free_gpu_memory_gb)} GB free)` : ""), lasted(found.now - each.joined_at), each.queue, el("td", { class: "wrap" }, each.impaired)]);
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
