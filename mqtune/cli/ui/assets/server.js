// What is asked of the server, once or again and again, and what it tells; and the one line that says that it, or Redis, is away.
import { lasted } from "./elements.js";

const FASTEST_MS = 200;
// What the page may do, once the server has said it.
export const me = {};
// Called with why when the server wants the token; and when the experiment that is shown may be gone.
export const wanting = { login: () => {}, experiment: () => {} };

const light = document.getElementById("live"), banner = document.getElementById("away");
// What a page has asked for is given up when another one is opened: a browser has six connections, and pictures may take some seconds.
let left = new AbortController();
let silentSince, told = "";

export function leave() {
  left.abort();
  left = new AbortController();
  problem("");
}

export function show(kind, text) {
  light.className = kind;
  light.textContent = text;
}

// How an experiment stands, in the corner of the page.
export function showState({ problem: wrong, state }) {
  show(wrong ? "off" : /^(driver away|its script|waiting|interrupted)/.test(state) ? "waits" : state === "failed" ? "off" : state === "finished" ? "done" : "on", wrong ? "no news" : state);
}

// What the server says is wrong; an empty text where nothing is.
export function problem(text) {
  told = text;
  tell();
}

function tell() {
  const seconds = silentSince === undefined ? 0 : (performance.now() - silentSince) / 1000;
  const text = silentSince === undefined ? told : `mqtune ui has not answered for ${lasted(seconds)}; is it still running? The page is as it was then.`;
  if (banner.textContent !== text) banner.textContent = text;
}
setInterval(() => silentSince !== undefined && tell(), 1000);

function heard(isThere) {
  if (isThere === (silentSince === undefined)) return;
  silentSince = isThere ? undefined : performance.now();
  if (!isThere) show("off", "no answer");
  tell();
}

export async function api(path, parameters, body) {
  // A login serves the page that is opened next too.
  const signal = path === "login" ? undefined : left.signal;
  const options = !body ? { signal } : { signal, method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json", "X-Mqtune": me.csrf ?? "" } };
  let answer;
  try {
    answer = await fetch(`api/${path}?${parameters instanceof URLSearchParams ? parameters : new URLSearchParams(parameters)}`, options);
  } catch {
    if (signal?.aborted) return new Promise(() => {});
    heard(false);
    throw Object.assign(new Error("mqtune ui does not answer"), { away: true });
  }
  heard(true);
  if (answer.status === 204) return {};
  const found = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  // Nobody waits for it any more.
  if (signal?.aborted) return new Promise(() => {});
  if (answer.ok) return found;
  if (answer.status === 401 && path !== "login") wanting.login(found.error);
  throw Object.assign(new Error(found.error), { status: answer.status });
}

// Calls back with each message of a stream, as long as the page is looked at; a broken stream is begun again.
export function stream(path, parameters, take) {
  let source, again;
  const stop = () => { clearTimeout(again); source?.close(); source = undefined; };
  const start = () => {
    if (source || document.hidden) return;
    source = new EventSource(`api/${path}?${new URLSearchParams(parameters)}`);
    source.onmessage = (message) => { heard(true); const found = JSON.parse(message.data); if (found.over) stop(); take(found); };
    source.onerror = () => {
      show("off", "reconnecting");
      // A browser tries again by itself unless it was refused.
      if (source.readyState === EventSource.CLOSED) { stop(); again = setTimeout(start, 2000); wanting.experiment(); }
    };
  };
  const look = () => (document.hidden ? stop() : start());
  document.addEventListener("visibilitychange", look);
  start();
  return () => { document.removeEventListener("visibilitychange", look); stop(); };
}

// Asks again and again as long as the page is looked at; returns what ends it.
export function poll(seconds, ask) {
  let timer;
  const tick = async () => {
    if (!document.hidden) await ask();
    if (timer !== null) timer = setTimeout(tick, seconds * 1000);
  };
  tick();
  return () => { clearTimeout(timer); timer = null; };
}

// Calls a function soon after each request for that, at most as often as it allows by the milliseconds that it returns.
export function paced(work, fastest = FASTEST_MS) {
  let timer, dueAt = 0, busy = false, wanted = false;
  const run = async () => {
    timer = undefined;
    busy = true;
    wanted = false;
    let pause = 0;
    try {
      pause = (await work()) ?? 0;
    } catch (error) {
      // The banner says already that the server is away.
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
