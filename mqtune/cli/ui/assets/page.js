// Shows the page that the address names, and asks for the token if the server needs it.
import { card, el, place } from "./elements.js";
import { counted } from "./format.js";
import { api, leave, me, poll, problem, show, wanting } from "./server.js";
import { comparePage, trialsPage } from "./compare.js";
import { experimentPage } from "./experiment.js";
import { experimentsPage } from "./experiments.js";
import { fleetPage } from "./fleet.js";
import { keyboard } from "./keyboard.js";
import { trialPage } from "./trial.js";

const main = document.getElementById("main"),
  fleetLine = document.getElementById("fleet");
// The shown page. Its *end* ends it, and its *route*, if it has tabs, shows the tab that the address names.
let page = { end: () => {} };
let turns = 0,
  opened = "",
  shown = "";
// The promise of the login with the address's token, which is then removed from the address. Pages wait for it.
let entering;

wanting.login = login;
// Asks the server whether the experiment of the shown page exists. It is called again when the stream has broken.
wanting.experiment = async () => {
  const turn = turns;
  if (!opened) return;
  try {
    await api("summaries", { of: opened });
  } catch (error) {
    if (error.status === 404 && turn === turns) await missing(error.message);
  }
};

function close() {
  page.end();
  page = { end: () => {} };
  shown = "";
}

async function missing(why) {
  const name = opened;
  leave();
  close();
  main.replaceChildren(
    card(
      `There is no experiment "${name}" here`,
      { level: "h1" },
      el("p", { class: "soft" }, `${why}. It may have been deleted, or have another name.`),
      el("p", { id: "near" }),
      el("p", {}, el("a", { href: "#/" }, "All experiments")),
    ),
  );
  try {
    const near = (await api("near", { name })).name;
    if (near)
      document.getElementById("near")?.replaceChildren("Do you mean ", el("a", { href: place("e", near) }, near), "?");
  } catch {
    /* Without an answer, the card has no suggestion. */
  }
}

function login(why) {
  close();
  const token = el("input", { type: "password", "aria-label": "token", autocomplete: "off" }),
    error = el("p", { class: "note" }, why);
  const enter = async (event) => {
    event.preventDefault();
    try {
      await api(
        "login",
        {},
        {
          token: token.value
            .replace(/.*#token=/, "")
            .replace(/\/.*/, "")
            .trim(),
        },
      );
      route();
    } catch (failed) {
      error.textContent = failed.message;
    }
  };
  main.replaceChildren(
    card(
      "mqtune",
      { level: "h1" },
      el(
        "form",
        { onsubmit: enter },
        error,
        el("div", { class: "bar" }, token, el("button", { class: "button primary" }, "Open")),
      ),
    ),
  );
  show("", "");
}

// Decodes a part of the address. If a user has typed it, it may not be encoded.
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

async function route() {
  const turn = ++turns;
  const given = location.hash.match(/^#token=([\w-]+)(.*)$/);
  const key = location.hash.replace(/\?.*/, "");
  // The address names another tab of the shown page.
  if (!given && key && key === shown && page.route) {
    page.route();
    return;
  }
  leave();
  close();
  opened = "";
  if (given) {
    history.replaceState(null, "", `#${given[2] || "/"}`);
    entering = api("login", {}, { token: given[1] });
  }
  try {
    await entering;
  } catch (error) {
    entering = undefined;
    login(error.message);
    return;
  }
  try {
    Object.assign(me, await api("me"));
  } catch (error) {
    if (error.status !== 401 && !error.away) problem(error.message);
    return;
  }
  // The user may have opened another page meanwhile.
  if (turn !== turns) return;
  document.getElementById("reads").textContent = me.steer ? "" : "read-only";
  show("on", "live");
  const parts = location.hash.replace(/^#\/?/, "").replace(/\?.*/, "").split("/").map(decoded);
  const [kind, name, trial] = parts;
  document.title = [trial, name, kind === "fleet" ? "Fleet" : "", "mqtune"].filter(Boolean).join(" · ");
  document
    .querySelectorAll("header [data-page]")
    .forEach((link) => link.toggleAttribute("aria-current", (link.dataset.page === "fleet") === (kind === "fleet")));
  document.querySelectorAll("header [aria-current]").forEach((link) => link.setAttribute("aria-current", "page"));
  scrollTo(0, 0);
  main.className = kind === "fleet" ? "broad" : "";
  page =
    kind === "fleet"
      ? fleetPage(main)
      : kind === "compare"
        ? comparePage(main, parts.slice(1))
        : kind === "trials"
          ? trialsPage(main, name, parts.slice(2))
          : kind === "e" && trial
            ? trialPage(main, name, /^\d+$/.test(trial) ? trial.padStart(4, "0") : trial)
            : kind === "e"
              ? experimentPage(main, name)
              : experimentsPage(main);
  shown = location.hash.replace(/\?.*/, "");
  if (kind === "e" || kind === "trials") {
    opened = name;
    wanting.experiment();
  }
}

poll(5, async () => {
  if (!me.csrf) return;
  let found;
  try {
    found = await api("fleet/line");
  } catch {
    return;
  }
  const impaired = found.impaired
    ? [" · ", el("b", { class: "warn-text" }, `${counted(found.impaired, "worker")} with a problem`)]
    : [];
  fleetLine.hidden = false;
  fleetLine.replaceChildren(
    ...(found.workers
      ? [
          "Fleet ",
          el("b", {}, `${found.busy} of ${found.slots}`),
          " slots busy · ",
          el("b", {}, counted(found.workers, "worker")),
          ...impaired,
        ]
      : ["no worker"]),
  );
});

keyboard(document.getElementById("help"), () => page);
document.getElementById("skip").addEventListener("click", () => main.focus());
addEventListener("hashchange", route);
route();
