// Charts of values over time, one line per run. Hovering or the arrow keys move a cursor that reads the values.
const CHART_HEIGHT = 220;
const ROOM = { left: 62, right: 24, top: 10, bottom: 34 };

function valueAt(line, ms) {
  const place = countUpTo(line.at, ms) - 1;
  if (place < 0 || ms > line.end) return null;
  return line.value[place] + (line.slope ? line.slope[place] * (ms - line.at[place]) : 0);
}

// Which runs are hidden, for all charts of a section.
function legend(runs, changed) {
  const hidden = new Set();
  const buttons = runs.map((run, place) => make("button", { type: "button", class: "toggle", "aria-pressed": "true",
    click: (event) => {
      if (!hidden.delete(place)) hidden.add(place);
      event.currentTarget.setAttribute("aria-pressed", String(!hidden.has(place)));
      changed();
    } }, sample(place, run.name), run.name));
  return { hidden, element: make("div", { class: "legend", role: "group", "aria-label": "Policies shown" }, ...buttons) };
}

// Tells where a plot is pointed at, as a part of its width: by a mouse as long as it is there, by a finger for longer.
function pointedAt(plot, tell) {
  const told = (event) => tell((event.clientX - plot.getBoundingClientRect().left - ROOM.left) / (plot.clientWidth - ROOM.left - ROOM.right));
  plot.addEventListener("pointerdown", told);
  plot.addEventListener("pointermove", told);
  plot.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && document.activeElement !== plot && tell(null));
}

// lines: {place, name, at, value, slope, end}, times in ms
function stepChart({ title, format, tick, lines, hidden }) {
  const plot = make("div", { class: "plot", tabindex: 0, role: "slider", "aria-orientation": "horizontal",
    "aria-label": `${title}: time cursor` });
  const readout = make("p", { class: "readout" });
  const end = Math.max(...lines.map((line) => line.end));
  const chart = { title, format, tick, end, plot, readout, cursor: null, shown: () => lines.filter((line) => !hidden.has(line.place)) };
  const redraw = keepDrawn(plot, (width) => drawChart(chart, width));
  pointedAt(plot, (part) => point(chart, part === null ? null : part * end));
  plot.addEventListener("focus", () => chart.cursor === null && point(chart, 0));
  plot.addEventListener("blur", () => point(chart, null));
  plot.addEventListener("keydown", (event) => {
    const step = event.shiftKey ? end / 10 : end / 100;
    const to = { ArrowLeft: chart.cursor - step, ArrowRight: chart.cursor + step, ArrowDown: chart.cursor - step,
      ArrowUp: chart.cursor + step, Home: 0, End: end }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    point(chart, to);
  });
  point(chart, null);
  return { element: make("figure", { class: "chart" }, make("figcaption", {}, title), plot, readout), redraw() {
    redraw();
    point(chart, chart.cursor);
  } };
}

function point(chart, ms) {
  chart.cursor = ms === null ? null : clamp(ms, 0, chart.end);
  const lines = chart.shown();
  chart.plot.setAttribute("aria-valuemin", 0);
  chart.plot.setAttribute("aria-valuemax", (chart.end / 3600000).toFixed(2));
  chart.plot.setAttribute("aria-valuenow", ((chart.cursor ?? 0) / 3600000).toFixed(2));
  const cursor = chart.plot.querySelector(".cursor");
  cursor?.setAttribute("visibility", ms === null ? "hidden" : "visible");
  if (ms === null) {
    chart.readout.replaceChildren(make("span", { class: "aside" }, "Point at the chart, or focus it and use the arrow keys, to read values."));
    chart.plot.setAttribute("aria-valuetext", "no time chosen");
    return;
  }
  const width = chart.plot.clientWidth - ROOM.left - ROOM.right;
  const x = ROOM.left + chart.cursor / chart.end * width;
  cursor?.setAttribute("d", `M${x.toFixed(1)} ${ROOM.top}V${CHART_HEIGHT - ROOM.bottom}`);
  const said = lines.map((line) => {
    const value = valueAt(line, chart.cursor);
    if (value !== null) return [line, chart.format(value)];
    return [line, chart.cursor < line.at[0] ? "not begun" : "ended"];
  });
  const unit = unitOf(chart.end);
  const time = `${grouped(chart.cursor / unit.ms, 2)} ${unit.name}`;
  chart.readout.replaceChildren(make("strong", {}, time),
    ...said.map(([line, text]) => make("span", { class: "reading" }, sample(line.place, line.name), `${line.name} ${text}`)));
  chart.plot.setAttribute("aria-valuetext", [`at ${time}`, ...said.map(([line, text]) => `${line.name} ${text}`)].join(", "));
}

// What a run of this length is told in.
function unitOf(ms) {
  if (ms < 180000) return { ms: 1000, name: "s" };
  return ms < 10800000 ? { ms: 60000, name: "min" } : { ms: 3600000, name: "h" };
}

function peak(line) {
  let top = 0;
  for (let i = 0; i < line.at.length; i++) {
    const until = i + 1 < line.at.length ? line.at[i + 1] : line.end;
    top = Math.max(top, line.value[i] + (line.slope ? line.slope[i] * (until - line.at[i]) : 0));
  }
  return top;
}

function drawChart(chart, width) {
  const lines = chart.shown();
  const values = ticksTo(Math.max(0, ...lines.map(peak)), 4);
  const top = values[values.length - 1];
  const inner = { width: width - ROOM.left - ROOM.right, height: CHART_HEIGHT - ROOM.top - ROOM.bottom };
  const x = (ms) => ROOM.left + ms / chart.end * inner.width;
  const y = (value) => ROOM.top + inner.height * (1 - value / top);
  const svg = shape("svg", { width, height: CHART_HEIGHT, viewBox: `0 0 ${width} ${CHART_HEIGHT}`, role: "img",
    "aria-label": `${chart.title}. ${lines.map((line) => `${line.name}: at most ${chart.format(peak(line))}`).join("; ")}` });
  for (const value of values) {
    svg.append(shape("path", { class: "grid", d: `M${ROOM.left} ${y(value).toFixed(1)}H${width - ROOM.right}` }),
      shape("text", { class: "tick", x: ROOM.left - 8, y: y(value) + 4, "text-anchor": "end" }, chart.tick(value)));
  }
  const unit = unitOf(chart.end);
  const times = ticksTo(chart.end / unit.ms, clamp(Math.floor(inner.width / 80), 2, 10)).filter((time) => time * unit.ms <= chart.end * 1.0001);
  for (const time of times) {
    svg.append(shape("text", { class: "tick", x: x(time * unit.ms), y: CHART_HEIGHT - 14, "text-anchor": "middle" }, `${tickText(time)} ${unit.name}`));
  }
  for (const line of lines) {
    svg.append(shape("path", { class: `line ${look(line.place)}`, d: steps(line, x, y) }));
    for (let i = 1; i <= 6; i++) {
      const ms = line.end * (i - 0.5 + 0.12 * (line.place % 4)) / 6.5;
      const value = valueAt(line, ms);
      if (value !== null) svg.append(shape("path", { class: `mark ${look(line.place)}`, d: markPath(line.place, x(ms), y(value), 4) }));
    }
  }
  svg.append(shape("path", { class: "cursor", visibility: "hidden" }));
  chart.plot.replaceChildren(svg);
  point(chart, chart.cursor);
}

// A line as a path. Where many steps fall on one pixel, only its least, greatest and last value are drawn.
function steps(line, x, y) {
  const words = [];
  let column = NaN;
  let low = 0;
  let high = 0;
  for (let i = 0; i < line.at.length; i++) {
    const left = x(line.at[i]);
    const here = y(line.value[i]);
    if (Math.floor(left) === column && i + 1 < line.at.length && !line.slope) {
      low = Math.min(low, here);
      high = Math.max(high, here);
      continue;
    }
    if (low < high) words.push(`V${low.toFixed(1)}V${high.toFixed(1)}`);
    if (!words.length) words.push(`M${left.toFixed(1)} ${here.toFixed(1)}`);
    else if (line.slope) words.push(`L${left.toFixed(1)} ${here.toFixed(1)}`);
    else words.push(`V${y(line.value[i - 1]).toFixed(1)}H${left.toFixed(1)}V${here.toFixed(1)}`);
    column = Math.floor(left);
    low = high = here;
  }
  const last = line.at.length - 1;
  const finish = line.slope ? y(line.value[last] + line.slope[last] * (line.end - line.at[last])) : null;
  words.push(finish === null ? `H${x(line.end).toFixed(1)}` : `L${x(line.end).toFixed(1)} ${finish.toFixed(1)}`);
  return words.join("");
}

// The line of one quantity of a run; `summed` turns a rate per hour into what it has come to.
function lineOf(run, place, key, summed = false) {
  const rate = run.levels[key].map((value) => value ?? 0);
  const at = run.at;
  const end = Math.max(run.end, at[at.length - 1]);
  if (!summed) return { place, name: run.name, at, value: rate, end };
  const slope = rate.map((value) => value / 3600000);
  const value = [0];
  for (let i = 1; i < at.length; i++) value.push(value[i - 1] + slope[i - 1] * (at[i] - at[i - 1]));
  return { place, name: run.name, at, value, slope, end };
}

function timeLines(runs, key, summed) {
  return runs.map((run, place) => [run, place]).filter(([run]) => run.at.length && run.end > 0)
    .map(([run, place]) => lineOf(run, place, key, summed));
}

const NO_LEVELS = "This was run without history, so there is nothing to draw over time.";

function showCost(host, runs) {
  if (!timeLines(runs, "usd_per_hour").length) return host.append(plain(NO_LEVELS));
  const holder = make("div");
  let chart = null;
  const toggles = legend(runs, () => chart.redraw());
  const measure = make("select", { id: "cost-measure", change: build }, option("rate", "USD per hour"), option("sum", "USD so far"));
  function build() {
    const summed = measure.value === "sum";
    chart = stepChart({ title: summed ? "USD so far" : "USD per hour", format: (value) => `${usd(value)}${summed ? "" : "/h"}`,
      tick: (value) => `$${tickText(value)}`, lines: timeLines(runs, "usd_per_hour", summed), hidden: toggles.hidden });
    holder.replaceChildren(chart.element);
  }
  build();
  host.append(make("div", { class: "controls" }, toggles.element, labelled("Show", measure)), holder);
}

function showNodes(host, runs) {
  const panels = [["Rollout nodes", "rollout_nodes"], ["Training nodes", "train_nodes"], ["Jobs running", "running"], ["Jobs waiting", "waiting"]];
  if (!timeLines(runs, "running").length) return host.append(plain(NO_LEVELS));
  const toggles = legend(runs, () => charts.forEach((chart) => chart.redraw()));
  const moving = panels.filter(([, key]) => timeLines(runs, key).some(peak));
  const still = panels.filter((panel) => !moving.includes(panel)).map(([title]) => plain(`${title}: none, at any time.`));
  const charts = moving.map(([title, key]) => stepChart({ title, format: (value) => grouped(value, 0),
    tick: tickText, lines: timeLines(runs, key), hidden: toggles.hidden }));
  host.append(make("div", { class: "controls" }, toggles.element), make("div", { class: "panels" }, ...charts.map((chart) => chart.element)), ...still);
}
