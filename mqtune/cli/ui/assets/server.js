// Requests to the server, its streams, and the line that says if the server or Redis does not answer.
import { glyph } from "./elements.js";
import { lasted, number, timeOfDay } from "./format.js";

const FASTEST_MS = 200;
// The page's permissions, as the server has sent them.
export const me = {};
// Functions to call: *login*, with the reason, if the server needs the token, and *experiment* if the shown experiment
// may be missing.
export const wanting = { login: () => {}, experiment: () => {} };

const light = document.getElementById("live"),
  line = document.getElementById("away");
// Aborts the requests of a page when it is left: a browser has only six connections, and charts may take some seconds.
let left = new AbortController();
let silentSince,
  heardAt = Date.now(),
  told = "";

export function leave() {
  left.abort();
  left = new AbortController();
  problem("");
}

// Shows the state of the connection in the corner of the page.
export function show(kind, text) {
  light.className = kind;
  light.replaceChildren(...(text ? [glyph({ on: "running", off: "failed" }[kind] ?? "queued"), text] : []));
}

// Shows a problem that the server reports. An empty text hides the last one.
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
  // A login is not aborted, as the next page needs it, too.
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

// Calls *take* with each message of a stream while the page is visible. Opens a broken stream again. Until the server has
// opened the experiment, it calls *opening* with the progress in words. Returns a function that ends it.
export function stream(path, parameters, take, opening = () => {}) {
  let source, again;
  const stop = () => {
    clearTimeout(again);
    source?.close();
    source = undefined;
  };
  const broken = () => {
    stop();
    again = setTimeout(start, 2000);
    wanting.experiment();
  };
  const start = () => {
    if (source || document.hidden) return;
    source = new EventSource(`api/${path}?${new URLSearchParams(parameters)}`);
    source.onmessage = (message) => {
      heard(true);
      const found = JSON.parse(message.data);
      if (found.opening) {
        const { entries, total } = found.opening;
        opening(`opening the journal${total ? `: ${number(entries)} of ${number(total)} entries` : ""}`);
        return;
      }
      if (found.error) {
        broken();
        return;
      }
      if (found.over) stop();
      take(found);
    };
    source.onerror = () => {
      // Unless the server refused the stream, the browser itself tries again.
      if (source.readyState === EventSource.CLOSED) broken();
      else heard(false);
    };
  };
  const startOrStop = () => (document.hidden ? stop() : start());
  document.addEventListener("visibilitychange", startOrStop);
  start();
  return () => {
    document.removeEventListener("visibilitychange", startOrStop);
    stop();
  };
}

// Calls *ask* repeatedly while the page is visible, with these seconds between calls. Returns a function that ends it.
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

// Returns a function that calls *work* soon, but not before the pause after the last call is over. *work* returns this
// pause in milliseconds.
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
