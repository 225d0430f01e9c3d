// Numbers, durations and times as text.

const SHORT = 5;

export function number(value) {
  if (typeof value !== "number") return String(value ?? "");
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return significant(value, 4);
}

// Returns a number with this many significant digits. Zeros at its end stay.
function significant(value, digits) {
  if (value === 0) return "0";
  const size = Math.floor(Math.log10(Math.abs(value)));
  if (size < -4 || size > 5) return exponent(value, digits);
  return value.toFixed(Math.min(20, Math.max(0, digits - 1 - size)));
}

const exponent = (value, digits) => value.toExponential(digits - 1).replace("e+", "e");

// Returns a function that formats all numbers of a column alike. It uses exponents if the least number is below 0.001
// and the greatest at least 1,000 times as large.
export function columnFormat(values, digits) {
  const finite = values.filter((value) => typeof value === "number" && Number.isFinite(value));
  if (finite.every(Number.isInteger))
    return (value) => (typeof value === "number" ? value.toLocaleString("en") : String(value ?? ""));
  const sizes = finite.filter(Boolean).map(Math.abs),
    low = Math.min(...sizes),
    high = Math.max(...sizes);
  const wide = low < 1e-3 && high / low >= 1e3;
  return (value) =>
    typeof value !== "number" ? String(value ?? "") : wide ? exponent(value, digits) : significant(value, digits);
}

// Returns a function that formats the cells of a column in the table of trials.
export const cellFormat = ({ key, kind }, values) =>
  key === "ran_s"
    ? (value) => (value === undefined ? "" : lasted(value))
    : columnFormat(values, kind === "metric" && key !== "at" ? 4 : 3);

// The direction in which a metric is better.
export const ARROWS = { min: "↓", max: "↑" };

export const counted = (count, thing) => `${number(count)} ${thing}${count === 1 ? "" : "s"}`;

export function lasted(seconds) {
  if (!(seconds >= 0)) return "0 s";
  if (seconds < 60) return `${seconds.toFixed(seconds < SHORT && seconds % 1 ? 1 : 0)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 24
    ? `${hours} h ${String(minutes % 60).padStart(2, "0")} min`
    : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

// Returns a rough duration, such as "about 1 h" or "about 25 min".
export function about(seconds) {
  const minutes = seconds / 60;
  if (minutes < 1.5) return "about 1 min";
  const round = (value) => {
    const step = 10 ** Math.max(0, Math.floor(Math.log10(value)) - 1);
    return Math.round(value / step) * step;
  };
  if (minutes < 90) return `about ${minutes < 10 ? Math.round(minutes) : 5 * Math.round(minutes / 5)} min`;
  return minutes < 60 * 36 ? `about ${round(minutes / 60)} h` : `about ${round(minutes / 1440)} days`;
}

// Earlier times, in seconds since the epoch, are the virtual times of a simulation.
const VIRTUAL_BEFORE = 978307200;
export const isVirtual = (seconds) => seconds < VIRTUAL_BEFORE;

const DAY = 86400;
const clock = (at) => at.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

// Returns a past time, such as "20 min ago", "yesterday, 17:20" or "27 Nov".
export function ago(seconds, now = Date.now() / 1000) {
  const passed = now - seconds,
    at = new Date(seconds * 1000),
    today = new Date(now * 1000);
  if (passed < 60) return "just now";
  if (passed < DAY) return `${lasted(passed)} ago`.replace(/ h 00 min/, " h");
  const yesterday = new Date(today.getFullYear(), today.getMonth(), today.getDate() - 1);
  if (at >= yesterday) return `yesterday, ${clock(at)}`;
  return at.toLocaleDateString(undefined, {
    day: "numeric",
    month: "short",
    year: at.getFullYear() === today.getFullYear() ? undefined : "numeric",
  });
}

// Returns the full time with its zone, for a tooltip.
export const exact = (seconds) => {
  const at = new Date(seconds * 1000);
  return `${at.toISOString()} (${at.toLocaleString(undefined, { timeZoneName: "short", hourCycle: "h23" })})`;
};
export const timeOfDay = (seconds) => clock(new Date(seconds * 1000));
