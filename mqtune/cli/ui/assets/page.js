// Which page is open: it follows the address, and asks for the token where the server wants it.
import { el } from "./elements.js";
import { api, leave, me, problem, show, wanting } from "./server.js";
import { comparePage, trialsPage } from "./compare.js";
import { experimentPage } from "./experiment.js";
import { experimentsPage } from "./experiments.js";
import { fleetPage } from "./fleet.js";
import { trialPage } from "./trial.js";

const main = document.getElementById("main");
let close = () => {};
let turns = 0;
// The login under way: the page that is opened during it waits for it, for the token is no longer in the address.
let entering;

wanting.login = login;
// The experiment of the page that is open, if it is of one; and whether it is there, which a broken stream asks again.
let opened = "";
wanting.experiment = async () => {
  const turn = turns;
  if (!opened) return;
  try { await api("summaries", { of: opened }); } catch (error) { if (error.status === 404 && turn === turns) missing(error.message); }
};

function missing(why) {
  leave();
  close();
  close = () => {};
  main.replaceChildren(el("h1", {}, opened), el("p", { class: "problem" }, `${why}. It may have been deleted, or have another name: `, el("a", { href: "#/" }, "all experiments")));
  show("off", "not there");
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
  leave();
  close();
  close = () => {};
  opened = "";
  const given = location.hash.match(/^#token=([\w-]+)(.*)$/);
  if (given) {
    history.replaceState(null, "", `#${given[2] || "/"}`);
    entering = api("login", {}, { token: given[1] });
  }
  try { await entering; } catch (error) { entering = undefined; login(error.message); return; }
  try { Object.assign(me, await api("me")); } catch (error) { if (error.status !== 401 && !error.away) problem(error.message); return; }
  // Somebody may have gone on while the server was asked.
  if (turn !== turns) return;
  const parts = location.hash.replace(/^#\/?/, "").replace(/\?.*/, "").split("/").map(decoded);
  const [kind, name, trial] = parts;
  document.title = [trial, name, "mqtune"].filter(Boolean).join(" · ");
  scrollTo(0, 0);
  close = kind === "fleet" ? fleetPage(main)
    : kind === "compare" ? comparePage(main, parts.slice(1))
    : kind === "trials" ? trialsPage(main, name, parts.slice(2))
    : kind === "e" && trial ? trialPage(main, name, /^\d+$/.test(trial) ? trial.padStart(4, "0") : trial)
    : kind === "e" ? experimentPage(main, name) : experimentsPage(main);
  if (kind === "e" || kind === "trials") { opened = name; wanting.experiment(); }
}

addEventListener("hashchange", route);
route();
