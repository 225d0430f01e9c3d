// Several trials of an experiment, or several experiments, side by side: their curves, and what they differ in.
import { el, lasted, place, progress, status, table } from "./elements.js";
import { api, problem, poll, show } from "./server.js";
import { picture } from "./chart.js";

export function trialsPage(main, name, ids) {
  const list = el("div"), note = el("p", { class: "note" });
  const pictures = [picture("picture", { name, kind: "curves", of: ids }, "Learning curves", { wide: true }), picture("picture", { name, kind: "parallel", of: ids }, "Parallel coordinates", { wide: true })];
  main.replaceChildren(el("h1", {}, el("a", { href: place("e", name) }, name), ` / ${ids.length} trials`), el("div", { class: "grid" }, pictures), el("section", { class: "card" }, el("h2", {}, "Side by side"), note, list));
  show("", "");
  const end = poll(5, async () => {
    const wanted = new URLSearchParams({ name });
    ids.forEach((id) => wanted.append("trial", id));
    let found;
    try { found = await api("trials", wanted); } catch (error) { if (!error.away) problem(error.message); return; }
    const lines = found.columns.map(({ key, title, kind }) => [kind ? `${title}` : title, found.rows.map((row) => row.cells[key] ?? "")]).filter(([, values]) => values.some(Boolean));
    sideBySide(list, [el("span", {}, "trial"), ...found.rows.map((row) => el("a", { href: place("e", name, row.id) }, row.id))], [["status", found.rows.map((row) => status(row.status))], ...lines]);
    note.textContent = found.rows.length < ids.length ? `${ids.length - found.rows.length} of them are not there` : "bold is what they differ in";
  });
  return () => { end(); pictures.forEach((each) => each.end()); };
}

export function comparePage(main, names) {
  const list = el("div"), of = names;
  const pictures = [["runs", "Best so far"], ["bests", "Learning curve of the best trial"], ["parameters", "Parameters"]].map(([kind, title]) => picture("compared", { kind, of }, title, { wide: kind === "parameters" }));
  main.replaceChildren(el("h1", {}, names.join(", ")), el("div", { class: "grid" }, pictures), el("section", { class: "card" }, el("h2", {}, "Side by side"), list));
  show("", "");
  const end = poll(5, async () => {
    const wanted = new URLSearchParams();
    names.forEach((each) => wanted.append("of", each));
    let found;
    try { found = (await api("summaries", wanted)).experiments; } catch (error) { if (!error.away) problem(error.message); return; }
    const params = [...new Set(found.flatMap((each) => (each.best?.config ?? []).map(([key]) => key)))];
    sideBySide(list, ["", ...found.map((each) => el("a", { href: place("e", each.name) }, each.name))], [
      ["state", found.map((each) => each.state)], ["owner", found.map((each) => each.owner)], ["done", found.map((each) => progress(each))],
      ["ran", found.map((each) => (each.ran_s ? lasted(each.ran_s) : ""))], ["reports", found.map((each) => each.reports.toLocaleString("en"))],
      ["best", found.map((each) => (each.best ? `${each.metrics[0]} = ${each.best.value}` : ""))], ["best trial", found.map((each) => (each.best ? el("a", { href: place("e", each.name, each.best.trial) }, each.best.trial) : ""))],
      ...params.map((key) => [`best config: ${key}`, found.map((each) => Object.fromEntries(each.best?.config ?? [])[key] ?? "")]),
      ["tags", found.map((each) => each.tags.join(", "))], ["notes", found.map((each) => each.notes)],
    ]);
  });
  return () => { end(); pictures.forEach((each) => each.end()); };
}

// A table with a column for each, in which lines that differ stand out.
function sideBySide(list, heads, lines) {
  const made = table(heads, lines.map(([title, values]) => [title, ...values]));
  made.querySelectorAll("tbody tr").forEach((row, place_) => {
    const texts = lines[place_][1].map((each) => (each instanceof Element ? each.textContent : each));
    row.classList.toggle("differs", new Set(texts).size > 1);
  });
  list.replaceChildren(made);
}
