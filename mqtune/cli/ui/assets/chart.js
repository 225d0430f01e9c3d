// A chart with the user's choices: metric, axes, smoothing and hidden series. A link restores the choices.
import { button, el, menu, place, quietSelect, save, svg, table } from "./elements.js";
import { number } from "./format.js";
import { api, me, paced } from "./server.js";
import { dialog, toast } from "./dialogs.js";

// Charts that are hidden if they are empty, as most experiments have no data for them.
const RARE = new Set(["rungs", "lineage", "pareto"]);
const SMOOTHED = new Set(["curves", "trial"]);
const SCALED = new Set(["history", "curves", "slices", "rungs", "pareto", "trial", "runs", "bests", "parameters"]);
export const AXES = { "": "auto", linear: "linear", log: "log" };
const SMOOTHS = { 0: "0", 0.3: "0.3", 0.6: "0.6", 0.8: "0.8", 0.9: "0.9" };
const KEPT = ["metric", "x", "y", "smooth", "hidden", "at"];
const MOST_LISTED = 1000;
// The order of a legend's entries. Other entries follow.
const ORDER = [
  "best",
  "best 10 %",
  "next 20 %",
  "the rest",
  "completed",
  "running",
  "stopped early",
  "paused",
  "failed",
];
const BEFORE_PX = "200px";

let loading;
// Loads Plotly with the first chart, and returns a promise. Plotly's address has its version.
export function plotly() {
  loading ??= new Promise((loaded, failed) => {
    const script = document.createElement("script");
    Object.assign(script, {
      src: me.plotly,
      onload: loaded,
      onerror: () => {
        loading = undefined;
        failed(Object.assign(new Error("plotly.js can't be loaded"), { away: true }));
      },
    });
    document.head.append(script);
  });
  return loading;
}

const seen = new IntersectionObserver((entries) => entries.forEach((each) => each.target.seen(each.isIntersecting)), {
  rootMargin: BEFORE_PX,
});

// Returns the choices of all charts of a page from its address, such as "curves.y=log".
export function chartStates() {
  const asked = new URLSearchParams(location.hash.split("?")[1] ?? ""),
    states = {};
  for (const [name, value] of asked) {
    const [kind, key] = name.split(".");
    if (!KEPT.includes(key)) continue;
    const state = (states[kind] ??= {});
    if (key === "hidden") {
      try {
        state.hidden = JSON.parse(value).map(String);
      } catch {
        state.hidden = [];
      }
    } else state[key] = key === "smooth" ? Math.min(0.95, Math.max(0, Number(value) || 0)) : value;
  }
  return states;
}

// Returns the address of a page with the choices of all its charts. It leads to *chart*.
export function chartLink(chart, states, more = {}) {
  const kept = Object.entries(states).flatMap(([kind, state]) =>
    KEPT.filter((key) => (Array.isArray(state[key]) ? state[key].length : state[key])).map((key) => [
      `${kind}.${key}`,
      Array.isArray(state[key]) ? JSON.stringify(state[key]) : state[key],
    ]),
  );
  return `${location.hash.replace(/\?.*/, "")}?${new URLSearchParams([...Object.entries(more).filter(([, value]) => value), ["chart", chart], ...kept])}`;
}

// Calls *work* when the element comes into sight, and after changes while it is in sight.
export function watched(node, work) {
  let inSight = false,
    stale = true;
  const fetchIt = paced(async () => {
    if (!inSight || !stale) return 0;
    stale = false;
    return work();
  });
  node.seen = (is) => {
    inSight = is;
    if (is && stale) fetchIt();
  };
  node.changed = () => {
    stale = true;
    if (inSight && !document.hidden) fetchIt();
  };
  node.again = () => {
    stale = true;
    fetchIt();
  };
  node.stop = () => {
    seen.unobserve(node);
    fetchIt.stop();
  };
  seen.observe(node);
}

const counts = (trace) => (typeof trace.count === "number" ? trace.count : undefined);

// The paths of marks by the beginning of Plotly's name of the symbol. Other marks are circles.
const SHAPES = {
  x: "M4 2l6 6M10 2l-6 6",
  diamond: "M7 1l4 4-4 4-4-4z",
  square: "M3.5 1.5h7v7h-7z",
  "triangle-down": "M3 2h8L7 9z",
  triangle: "M7 1l4 8H3z",
  star: "M7 .5 8.4 3.7l3.6.3-2.7 2.3.8 3.5L7 8 3.9 9.8l.8-3.5L2 4l3.6-.3z",
};

// Returns the mark of a legend's entry, which looks as in the chart.
function mark(trace) {
  const color = colored(trace.marker?.color ?? trace.line?.color ?? ""),
    { symbol = "", line } = trace.marker ?? {},
    hasMark = trace.type === "bar" || (trace.mode ?? "").includes("markers");
  const path = hasMark ? Object.entries(SHAPES).find(([start]) => symbol.startsWith(start))?.[1] : "M0 5h14";
  const shape = path
    ? svg("path", { d: path, class: symbol.endsWith("open") ? "hollow" : null })
    : svg("circle", { cx: 7, cy: 5, r: 3.6 });
  // The best one's mark is hollow, with a dot.
  if (symbol === "circle-dot")
    return svg(
      "svg",
      { class: "mark", viewBox: "0 0 14 10", "aria-hidden": "true" },
      svg("circle", { cx: 7, cy: 5, r: 4.2, class: "rim" }),
      svg("circle", { cx: 7, cy: 5, r: 1.6, class: "dot" }),
    );
  const isLine = !hasMark || symbol.startsWith("x");
  shape.style.stroke = isLine || line?.width ? color : "none";
  shape.style.strokeWidth = hasMark ? 1.4 : Math.min(3, trace.line?.width ?? 2);
  shape.style.strokeDasharray = !hasMark && trace.line?.dash === "dash" ? "4 2" : "none";
  if (!isLine && !symbol.endsWith("open")) shape.style.fill = color;
  if (isLine) shape.style.fill = "none";
  return svg("svg", { class: "mark", viewBox: "0 0 14 10", "aria-hidden": "true" }, shape);
}

// Returns the entries of a legend. A click on an entry hides or shows its traces.
export function legendOf(traces, state, changed) {
  const found = new Map();
  for (const trace of traces) {
    if (!trace.name) continue;
    const group = groupOf(trace),
      known = found.get(group);
    // If an entry has both a line and marks, its mark is shown. Only the best trial's entry shows the line.
    if (
      !known ||
      (plainText(trace.name) !== "best" &&
        (trace.mode ?? "").includes("markers") &&
        !(known.mode ?? "").includes("markers"))
    )
      found.set(group, { ...trace, count: counts(trace) ?? counts(known ?? {}) });
    else if (counts(trace) !== undefined) known.count = trace.count;
  }
  if (found.size < 2) return [];
  const rank = (name) => {
    const at = ORDER.indexOf(name);
    return at < 0 ? ORDER.length : at;
  };
  return [...found]
    .sort(([a], [b]) => rank(a) - rank(b))
    .map(([name, trace]) => {
      const toggle = () => {
        state.hidden = state.hidden.includes(name)
          ? state.hidden.filter((each) => each !== name)
          : [...state.hidden, name];
        changed();
      };
      return el(
        "button",
        { type: "button", class: "key", "aria-pressed": String(!state.hidden.includes(name)), onclick: toggle },
        mark(trace),
        plainText(name),
        counts(trace) === undefined ? null : el("span", {}, number(trace.count)),
      );
    });
}

// Shows a point's trial and its config beside the pointer.
export function tips(node, parameters) {
  const tip = el("div", { class: "tip", hidden: "" }),
    known = new Map();
  node.append(tip);
  const move = (event) => {
    const box = node.getBoundingClientRect(),
      x = event.clientX - box.left,
      y = event.clientY - box.top;
    tip.style.left = `${x > box.width / 2 ? Math.max(0, x - tip.offsetWidth - 12) : x + 12}px`;
    tip.style.top = `${Math.max(0, y - tip.offsetHeight / 2)}px`;
  };
  const isTrial = (text) => Boolean(parameters.name) && /^\w{4,}$/.test(text);
  async function hover(point, event) {
    const id = point.text ?? "",
      of = (axis, value) => {
        const at = axis?.ticktext ? axis.tickvals.indexOf(Math.round(value)) : -1;
        return at >= 0 ? plainText(axis.ticktext[at]).split(" ")[0] : typeof value === "number" ? number(value) : value;
      };
    const labelled = (axis, value, name) => `${plainText(axis?.title?.text) || name} ${of(axis, value)}`.trim();
    const where = ["parallel", "timeline", "lineage"].includes(parameters.kind)
      ? []
      : [labelled(point.xaxis, point.x, node.xName ?? ""), labelled(point.yaxis, point.y, node.yName ?? "")];
    const fill = (cells) =>
      tip.replaceChildren(
        el(
          "b",
          {},
          [isTrial(id) ? `trial ${id}` : plainText(id), plainText(point.data.name)].filter(Boolean).join(" · "),
        ),
        ...where.map((line) => el("div", {}, line)),
        ...cells.map(([key, value]) => el("div", { class: "soft" }, `${key} = ${number(value)}`)),
      );
    tip.hidden = false;
    fill(known.get(id) ?? []);
    move(event);
    if (!isTrial(id) || known.has(id)) return;
    known.set(id, []);
    try {
      const cells = (await api("trials", { name: parameters.name, trial: id })).rows[0]?.cells ?? {};
      known.set(id, [
        ...(cells.best === undefined ? [] : [["best", cells.best]]),
        ...Object.entries(cells)
          .filter(([key]) => key.startsWith("config."))
          .slice(0, 12)
          .map(([key, value]) => [key.slice(7), value]),
      ]);
      fill(known.get(id));
      move(event);
    } catch {
      known.delete(id);
    }
  }
  return (plot) => {
    plot.on("plotly_click", ({ points: [point] }) => {
      if (isTrial(point.text ?? "")) location.hash = place("e", parameters.name, point.text);
    });
    plot.on("plotly_hover", ({ points: [point], event }) => hover(point, event));
    plot.on("plotly_unhover", () => {
      tip.hidden = true;
    });
  };
}

// Returns the points of a chart as rows of a table.
const pointsOf = (panels) =>
  panels
    .flatMap((panel) =>
      panel.data.flatMap((trace) =>
        trace.x.map((x, index) => [
          panel.title || panel.key || "",
          plainText(trace.name),
          x,
          trace.y[index],
          plainText(trace.text?.[index] ?? ""),
        ]),
      ),
    )
    .filter(([, , x, y]) => x != null && y != null);
const POINT_HEADS = ["panel", "series", ["x", "right"], ["y", "right"], "label"];

// Returns the menu of a chart: a link to it, files, and its points as a table.
export function chartMenu(title, file, plots, panels, link) {
  const image = (format) => () =>
    plots().forEach((plot, index) =>
      Plotly.downloadImage(plot, {
        format,
        filename: `${file}${index ? `-${index + 1}` : ""}`,
        width: plot.clientWidth,
        height: plot.clientHeight,
        scale: format === "png" ? 2 : 1,
      }),
    );
  const cell = (value) => {
    const text = String(value);
    return /[",\n]/.test(text) || /^[=+@\t]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const csv = () => {
    const heads = POINT_HEADS.map((head) => [head].flat()[0]);
    const lines = [heads, ...pointsOf(panels())].map((row) => row.map(cell).join(","));
    save(`${file}.csv`, lines.join("\n"), "text/csv");
  };
  const copy = async () => {
    history.replaceState(null, "", link());
    try {
      await navigator.clipboard.writeText(location.href);
      toast("The link is copied.");
    } catch {
      toast("The link is in the address now.");
    }
  };
  const listed = () => {
    const rows = pointsOf(panels()),
      shown = rows.slice(0, MOST_LISTED);
    const cells = shown.map((row) => row.map((each) => (typeof each === "number" ? number(each) : each)));
    const node = dialog(
      title,
      [
        el(
          "p",
          { class: "note" },
          rows.length > shown.length
            ? `the first ${number(shown.length)} of ${number(rows.length)} points; CSV has all`
            : `${number(rows.length)} points`,
        ),
        table(POINT_HEADS, cells, { class: "window scroll", "aria-label": "points" }),
        el(
          "div",
          { class: "buttons" },
          button("Close", () => node.close("")),
        ),
      ],
      { kind: "wide" },
    );
  };
  return menu(
    "⋯",
    [
      ["Copy link", copy],
      ["Save as PNG", image("png")],
      ["Save as SVG", image("svg")],
      ["Save as CSV", csv],
      null,
      ["Show as table", listed],
    ],
    { label: `${title}: link, files and table`, kind: "icon" },
  );
}

// Returns a card with a chart. *parameters* are sent with each request, and *more* returns further ones.
export function picture(
  path,
  parameters,
  title,
  { states = {}, wide, brushed, scope, more, link, subtitle = "" } = {},
) {
  const { kind } = parameters;
  const state = Object.assign({ metric: "", x: "", y: "", smooth: 0, hidden: [] }, states[kind]);
  states[kind] = state;
  const note = el("p", { class: "note" }),
    legend = el("div", { class: "legend" }),
    plots = el("figure", { class: "figure plots" }, el("div", { class: "plot" })),
    nothing = el("p", { class: "nothing", hidden: "" });
  const controls = el("div", { class: "controls" });
  let last,
    choices = "",
    listening = new WeakSet();
  const all = () => [...plots.querySelectorAll(".plot")];
  const own = chartMenu(
    title,
    `${parameters.name ?? "compared"}-${kind}`,
    all,
    () => last?.panels ?? [],
    () => (link ?? ((chart) => chartLink(chart, states)))(kind),
  );
  const name = el("h2", {}, title);
  const node = el(
    "section",
    { class: `card chart ${wide ? "all" : ""}`, "data-kind": kind, "aria-label": title },
    el("div", { class: "title" }, name, controls),
    legend,
    note,
    plots,
    nothing,
  );
  const listen = tips(node, parameters);
  controls.append(own);
  // Drawings run one after the other. If one began during another, the chart might keep its former colours.
  let drawn = Promise.resolve();
  const redraw = () =>
    (drawn = drawn
      .catch(() => {})
      .then(async () => {
        if (!last?.panels) return;
        const every = all();
        for (const [index, panel] of last.panels.entries()) {
          const plot = every[index];
          const key = `${state.metric} ${state.x}`,
            isTitled = ["history", "curves", "slices"].includes(kind);
          node.yName = panel.key;
          await draw(
            plot,
            panel,
            { ...state, key },
            { tips: true, plainY: isTitled || kind === "rungs", brushes: kind === "parallel" && brushed },
          );
          if (listening.has(plot)) continue;
          listening.add(plot);
          listen(plot);
          if (brushed)
            plot.on("plotly_selected", (event) => {
              if (event?.range) {
                brushed(conditions(last.scales, event.range));
                Plotly.restyle(plot, { selectedpoints: [null] });
              }
            });
        }
      }));
  watched(node, async () => {
    try {
      const { of: those = [], ...single } = parameters;
      const wanted = new URLSearchParams({ ...single, metric: state.metric, x: state.x, where: scope?.() ?? "" });
      for (const each of those) wanted.append("of", each);
      for (const [key, value] of more?.() ?? []) wanted.append(key, value);
      [last] = await Promise.all([api(path, wanted), plotly()]);
    } catch (error) {
      if (!error.away) {
        nothing.textContent = error.message;
        nothing.hidden = false;
        plots.hidden = legend.hidden = true;
      }
      return 2000;
    }
    const began = performance.now(),
      isEmpty = Boolean(last.nothing);
    nothing.textContent = isEmpty ? emptyText(last.nothing) : "";
    nothing.hidden = !isEmpty;
    plots.hidden = legend.hidden = isEmpty;
    note.textContent = (last.remarks ?? []).join(" · ");
    node.hidden = isEmpty && RARE.has(kind);
    fillControls();
    if (!isEmpty) {
      fillPlots();
      fillLegend();
      await redraw();
    }
    return Math.max(1000 * last.pause_s, 10 * (performance.now() - began));
  });

  function fillPlots() {
    const [first] = last.panels,
      metric = first?.key && last.panels.length === 1 && ["history", "curves", "rungs"].includes(kind) ? first.key : "";
    name.textContent = [kind === "history" && metric ? `Best ${metric} over time` : title, subtitle]
      .filter(Boolean)
      .join(" ");
    plots.setAttribute("aria-label", `${name.textContent}: ${last.note}`);
    const several = last.panels.length > 1,
      size = last.scales?.length ? "plot parallel" : last.panels.length > 3 ? "plot small" : "plot";
    const parts = all();
    if (
      parts.length !== last.panels.length ||
      parts.some((part) => part.className.replace(" js-plotly-plot", "") !== size)
    ) {
      parts.forEach((part) => globalThis.Plotly?.purge(part));
      plots.replaceChildren(
        ...last.panels.map((panel) =>
          el(
            "div",
            {},
            several || panel.title ? el("div", { class: "panel-title" }, panel.title || panel.key) : null,
            el("div", { class: size }),
          ),
        ),
      );
    }
    // On a phone the axes need more width than there is, so that people scroll sideways.
    if (last.scales?.length) plots.tabIndex = 0;
    if (last.height)
      all().forEach((plot) => {
        plot.style.height = `${last.height}px`;
      });
  }
  function fillControls() {
    const offered = JSON.stringify(last.choices ?? {});
    if (offered === choices) return;
    choices = offered;
    const { metrics = [], x = {} } = last.choices ?? {};
    controls.replaceChildren(
      ...[
        metrics.length > 1
          ? quietSelect("metric", Object.fromEntries(metrics), state.metric, (value) => {
              state.metric = value;
              node.again();
            })
          : null,
        Object.keys(x).length > 1
          ? quietSelect("x", x, state.x, (value) => {
              state.x = value;
              node.again();
            })
          : null,
        SMOOTHED.has(kind)
          ? quietSelect("smooth", SMOOTHS, String(state.smooth), (value) => {
              state.smooth = Number(value);
              redraw();
            })
          : null,
        SCALED.has(kind)
          ? quietSelect("scale", AXES, state.y, (value) => {
              state.y = value;
              redraw();
            })
          : null,
        own,
      ].filter(Boolean),
    );
  }
  function fillLegend() {
    legend.replaceChildren(
      ...legendOf(
        last.panels.flatMap((panel) => panel.data),
        state,
        () => {
          fillLegend();
          redraw();
        },
      ),
    );
  }
  const recolor = () => {
    if (last?.panels) {
      fillLegend();
      redraw();
    }
  };
  dark.addEventListener("change", recolor);
  node.end = () => {
    node.stop();
    dark.removeEventListener("change", recolor);
    all().forEach((plot) => globalThis.Plotly?.purge(plot));
  };
  return node;
}

// Whether a chart is empty because nothing has been reported.
export const awaitsReports = (why) => /has no trials yet|has a finite value|have a number for/.test(why);

// Returns in a few words why a chart is empty.
export const emptyText = (why) =>
  awaitsReports(why)
    ? "appears with the first report"
    : why.replace(/^experiment '.*?' has nothing to draw(?: for \w+)?: /, "");

// Returns a text without the escapes that the server has added for Plotly.
const plainText = (text) =>
  (text ?? "").replaceAll("<br>", " ").replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");

// Returns a name or a value for a condition, in quotes if it would not be read as one word.
const word = (text) => (/^[\w.+\-/@:]+$/.test(text) && !/^(and|or|not)$/i.test(text) ? text : JSON.stringify(text));

// Returns the condition of the trials whose lines pass through a box in parallel coordinates. Axes have heights from 0
// to 1.
function conditions(scales, { x: [left, right], y: [low, high] }) {
  return scales
    .flatMap(({ key: name, low: from, high: to, is_log: isLog, names }, index) => {
      if (index < Math.min(left, right) || index > Math.max(left, right)) return [];
      const key = word(name),
        [least, most] = [Math.min(low, high), Math.max(low, high)];
      if (names.length) {
        const inside = (at) => {
          const share = names.length > 1 ? at / (names.length - 1) : 0.5;
          return share >= least && share <= most;
        };
        const kept = names.filter((_, at) => inside(at));
        return kept.length === 1
          ? [`${key}=${word(kept[0])}`]
          : names.filter((_, at) => !inside(at)).map((each) => `${key}!=${word(each)}`);
      }
      const at = (share) =>
        Number(
          (isLog
            ? Math.exp(Math.log(from) + share * (Math.log(to) - Math.log(from)))
            : from + share * (to - from)
          ).toPrecision(6),
        );
      return [...(least > 0 ? [`${key}>=${at(least)}`] : []), ...(most < 1 ? [`${key}<=${at(most)}`] : [])];
    })
    .join(" and ");
}
