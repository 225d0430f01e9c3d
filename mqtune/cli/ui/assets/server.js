// Requests to the server and its streams, and the line that says that the server, or Redis, does not answer.
import { glyph } from "./elements.js";
import { lasted, timeOfDay } from "./format.js";

const FASTEST_MS = 200;
// What the page may do, by the server.
export const me = {};
// Called with the reason when the server wants the token, and when the experiment on the page may be missing.
export const wanting = { login: () => {}, experiment: () => {} };

const light = document.getElementById("live"),
  line = document.getElementById("away");
// Requests of a page end with it. A browser has six connections, and pictures may take some seconds.
let left = new AbortController();
let silentSince,
  heardAt = Date.now(),
  told = "";

export function leave() {
  left.abort();
  left = new AbortController();
  problem("");
}

// The connection, in the corner of the page.
export function show(kind, text) {
  light.className = kind;
  light.replaceChildren(...(text ? [glyph({ on: "running", off: "failed" }[kind] ?? "queued"), text] : []));
}

// Shows a problem that the server reports. An empty text ends it.
export function problem(text) {
  told = text;
  tell();
}

export const isAway = () => silentSince !== undefined || /^no news from Redis/.test(told);

function tell() {
  const seconds = silentSince === undefined ? 0 : (performance.now() - silentSince) / 1000;
  const text =
    silentSince === undefined
      ? told
      : `mqtune ui has not answered for ${lasted(seconds)}. Is it still running? Trials continue. The values are from ${timeOfDay(heardAt / 1000)}. The next try is in some seconds.`;
  if (line.textContent !== text) line.textContent = text;
  document.documentElement.classList.toggle("away", isAway());
  if (silentSince !== undefined) show("off", `offline ${lasted(seconds)}`);
  else if (isAway()) show("off", "offline");
  else if (me.csrf) show("on", "live");
}
setInterval(() => silentSince !== undefined && tell(), 1000);

function heard(isThere) {
  if (isThere) heardAt = Date.now();
  if (isThere === (silentSince === undefined)) return;
  silentSince = isThere ? undefined : performance.now();
  tell();
}

export async function api(path, parameters, body) {
  // A login serves the page that is opened next, too.
  const signal = path === "login" ? undefined : left.signal;
  const options = !body
    ? { signal }
    : {
        signal,
        method: "POST",
        body: JSON.stringify(body),
        headers: { "Content-Type": "application/json", "X-Mqtune": me.csrf ?? "" },
      };
  let answer;
  try {
    answer = await fetch(
      `api/${path}?${parameters instanceof URLSearchParams ? parameters : new URLSearchParams(parameters)}`,
      options,
    );
  } catch {
    if (signal?.aborted) return new Promise(() => {});
    heard(false);
    throw Object.assign(new Error("mqtune ui does not answer"), { away: true });
  }
  heard(true);
  if (answer.status === 204) return {};
  const found = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  if (signal?.aborted) return new Promise(() => {});
  if (answer.ok) return found;
  if (answer.status === 401 && path !== "login") wanting.login(found.error);
  throw Object.assign(new Error(found.error), { status: answer.status });
}

// Calls back with each message of a stream while the page is visible. A broken stream is opened again.
export function stream(path, parameters, take) {
  let source, again;
  const stop = () => {
    clearTimeout(again);
    source?.close();
    source = undefined;
  };
  const start = () => {
    if (source || document.hidden) return;
    source = new EventSource(`api/${path}?${new URLSearchParams(parameters)}`);
    source.onmessage = (message) => {
      heard(true);
      const found = JSON.parse(message.data);
      if (found.over) stop();
      take(found);
    };
    source.onerror = () => {
      // A browser tries again by itself unless it was refused.
      if (source.readyState === EventSource.CLOSED) {
        stop();
        again = setTimeout(start, 2000);
        wanting.experiment();
      } else heard(false);
    };
  };
  const look = () => (document.hidden ? stop() : start());
  document.addEventListener("visibilitychange", look);
  start();
  return () => {
    document.removeEventListener("visibilitychange", look);
    stop();
  };
}

// Asks repeatedly while the page is visible. Returns the function that ends it.
export function poll(seconds, ask) {
  let timer;
  const tick = async () => {
    if (!document.hidden) await ask();
    if (timer !== null) timer = setTimeout(tick, seconds * 1000);
  };
  tick();
  return () => {
    clearTimeout(timer);
    timer = null;
  };
}

// Returns a function that calls *work* soon, and at most as often as the milliseconds allow that it returns.
export function paced(work, fastest = FASTEST_MS) {
  let timer,
    dueAt = 0,
    busy = false,
    wanted = false;
  const run = async () => {
    timer = undefined;
    busy = true;
    wanted = false;
    let pause = 0;
    try {
      pause = (await work()) ?? 0;
    } catch (error) {
      if (!error.away) problem(error.message);
    } finally {
      busy = false;
      dueAt = performance.now() + Math.max(fastest, pause);
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
