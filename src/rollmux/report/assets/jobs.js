// SLO headroom: how near each job came to what it was promised.
const NAMED = 8; // violations named per run before the rest is left to the table

function jobRows(runs) {
  return runs.flatMap((run, place) => run.jobs.job.map((job, i) => {
    const row = { place, run: run.name, hasSpans: run.has_spans };
    for (const key of Object.keys(run.jobs)) row[key] = run.jobs[key][i];
    row.used = row.slowdown === null ? null : Math.max(row.slowdown, row.slowdown_at_least) / row.slo;
    return row;
  }));
}

function showJobs(host, runs, goTo) {
  const rows = jobRows(runs);
  if (!rows.length) return host.append(plain("No job was run, so no SLO was at stake."));
  const toggles = legend(runs, () => chart.redraw());
  const chart = headroomChart(runs, rows, toggles.hidden);
  const list = jobTable(runs, rows, goTo);
  host.append(make("div", { class: "controls" }, toggles.element), chart.element, violations(runs, rows), list);
}

function violations(runs, rows) {
  return make("ul", { class: "violations", "aria-label": "Broken SLOs" }, ...runs.map((run, place) => {
    const broken = rows.filter((row) => row.place === place && !row.met).sort((a, b) => (b.used ?? Infinity) - (a.used ?? Infinity));
    const total = run.jobs.job.length;
    const item = make("li", {}, sample(place, run.name), make("strong", {}, run.name), ": ");
    if (!broken.length) item.append(total ? `every SLO kept, ${counted(total, "job", "jobs")}.` : "no jobs.");
    else {
      const names = broken.slice(0, NAMED).map((row) => `${row.job} (${howBroken(row)})`);
      const rest = broken.length - names.length;
      item.append(make("span", { class: "broken" }, `✕ ${grouped(broken.length, 0)} of ${counted(total, "SLO", "SLOs")} broken`),
        `: ${names.join(", ")}${rest ? `, and ${grouped(rest, 0)} more` : ""}.`);
    }
    return item;
  }));
}

// A job that was given up breaks its SLO however fast it was.
function howBroken(row) {
  if (!row.group) return "it never had a place";
  if (row.failed) return "it was given up";
  return row.slowdown === null ? "it did no iteration" : pace(row);
}

// With an iteration that was never done it is slower than by those that were.
function pace(row) {
  return `${row.slowdown_at_least > row.slowdown ? "at least " : ""}${fixed(row.used * row.slo, 3)}× of ${fixed(row.slo, 2)}×`;
}

function headroomChart(runs, rows, hidden) {
  const ranked = runs.map((run, place) => rows.filter((row) => row.place === place && row.used !== null).sort((a, b) => b.used - a.used));
  const plot = make("div", { class: "plot", tabindex: 0, role: "slider", "aria-label": "SLO headroom: job cursor" });
  const readout = make("p", { class: "readout" });
  const chart = { plot, readout, ranked, longest: Math.max(1, ...ranked.map((list) => list.length)), cursor: null,
    shown: () => ranked.map((list, place) => [place, list]).filter(([place, list]) => list.length && !hidden.has(place)) };
  const redraw = keepDrawn(plot, (width) => drawHeadroom(chart, width, runs));
  pointedAt(plot, (part) => pointJob(chart, part === null ? null : Math.round(part * chart.longest - 0.5), runs));
  plot.addEventListener("focus", () => chart.cursor === null && pointJob(chart, 0, runs));
  plot.addEventListener("blur", () => pointJob(chart, null, runs));
  plot.addEventListener("keydown", (event) => {
    const step = event.shiftKey ? 10 : 1;
    const to = { ArrowLeft: chart.cursor - step, ArrowDown: chart.cursor - step, ArrowRight: chart.cursor + step,
      ArrowUp: chart.cursor + step, Home: 0, End: chart.longest - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    pointJob(chart, to, runs);
  });
  pointJob(chart, null, runs);
  return { redraw, element: make("figure", { class: "chart" },
    make("figcaption", {}, "Slowdown as a part of the SLO, each policy's jobs from the tightest to the loosest; above the line the SLO is broken"), plot, readout) };
}

function pointJob(chart, rank, runs) {
  const { plot, readout } = chart;
  chart.cursor = rank === null ? null : clamp(rank, 0, chart.longest - 1);
  plot.setAttribute("aria-valuemin", 1);
  plot.setAttribute("aria-valuemax", chart.longest);
  plot.setAttribute("aria-valuenow", (chart.cursor ?? 0) + 1);
  const cursor = plot.querySelector(".cursor");
  cursor?.setAttribute("visibility", rank === null ? "hidden" : "visible");
  if (rank === null) {
    readout.replaceChildren(make("span", { class: "aside" }, "Point at the chart, or focus it and use the arrow keys, to read jobs."));
    plot.setAttribute("aria-valuetext", "no job chosen");
    return;
  }
  const x = ROOM.left + (chart.cursor + 0.5) / chart.longest * (plot.clientWidth - ROOM.left - ROOM.right);
  cursor?.setAttribute("d", `M${x.toFixed(1)} ${ROOM.top}V${CHART_HEIGHT - ROOM.bottom}`);
  const said = chart.shown().filter(([, list]) => list[chart.cursor]).map(([place, list]) => {
    const row = list[chart.cursor];
    return [place, `${runs[place].name}: ${row.job} ${pace(row)}${row.met ? "" : row.failed ? ", given up" : ", broken"}`];
  });
  readout.replaceChildren(make("strong", {}, `no. ${chart.cursor + 1}`),
    ...said.map(([place, text]) => make("span", { class: "reading" }, sample(place, runs[place].name), text)));
  plot.setAttribute("aria-valuetext", said.map(([, text]) => text).join("; "));
}

function drawHeadroom(chart, width, runs) {
  const shown = chart.shown();
  const top = Math.max(1.1, ...shown.map(([, list]) => list[0].used * 1.03));
  const lowest = Math.min(1, ...shown.map(([, list]) => list[list.length - 1].used));
  const bottom = Math.max(0, Math.floor((lowest - 0.05) * 10) / 10);
  const x = (rank) => ROOM.left + (rank + 0.5) / chart.longest * (width - ROOM.left - ROOM.right);
  const y = (used) => ROOM.top + (CHART_HEIGHT - ROOM.top - ROOM.bottom) * (top - used) / (top - bottom);
  const svg = shape("svg", { width, height: CHART_HEIGHT, viewBox: `0 0 ${width} ${CHART_HEIGHT}`, role: "img",
    "aria-label": `Slowdown over SLO. ${shown.map(([place, list]) => `${runs[place].name}: ${runs[place].jobs.met.filter((met) => !met).length} of ${runs[place].jobs.met.length} broken`).join("; ")}` });
  for (const value of ticksTo(top - bottom, 4).map((tick) => tick + bottom).filter((tick) => tick <= top && Math.abs(tick - 1) > 0.04 * (top - bottom))) {
    svg.append(shape("path", { class: "grid", d: `M${ROOM.left} ${y(value).toFixed(1)}H${width - ROOM.right}` }),
      shape("text", { class: "tick", x: ROOM.left - 8, y: y(value) + 4, "text-anchor": "end" }, `${Math.round(100 * value)} %`));
  }
  svg.append(shape("path", { class: "limit", d: `M${ROOM.left} ${y(1).toFixed(1)}H${width - ROOM.right}` }),
    shape("text", { class: "tick limit-name", x: ROOM.left - 8, y: y(1) + 4, "text-anchor": "end" }, "SLO"),
    shape("text", { class: "tick", x: ROOM.left, y: CHART_HEIGHT - 14 }, "tightest"),
    shape("text", { class: "tick", x: width - ROOM.right, y: CHART_HEIGHT - 14, "text-anchor": "end" }, "loosest"));
  const apart = (width - ROOM.left - ROOM.right) / chart.longest;
  for (const [place, list] of shown) drawRanked(svg, place, list, x, y, apart);
  svg.append(shape("path", { class: "cursor", visibility: "hidden" }));
  chart.plot.replaceChildren(svg);
  pointJob(chart, chart.cursor, runs);
}

// A mark per job while there is room; beyond that a line with a mark here and there. Broken SLOs always have a cross.
function drawRanked(svg, place, list, x, y, apart) {
  const dense = apart < 9;
  const every = dense ? Math.ceil(60 / apart) : 1;
  const shift = dense ? Math.floor(every * (place % 3) / 3) : 0;
  const r = dense ? 4 : clamp(apart / 3, 3, 5);
  if (dense) svg.append(shape("path", { class: `line ${look(place)}`, d: `M${list.map((row, rank) => `${x(rank).toFixed(1)} ${y(row.used).toFixed(1)}`).join("L")}` }));
  const marks = list.map((row, rank) => row.met && rank % every === shift ? markPath(place, x(rank), y(row.used), r) : "");
  const crosses = list.map((row, rank) => row.met ? "" : crossPath(x(rank), y(row.used), dense ? 3 : r));
  svg.append(shape("path", { class: `mark ${look(place)}`, d: marks.join("") }), shape("path", { class: `cross ${look(place)}`, d: crosses.join("") }));
}

function crossPath(x, y, r) {
  const at = (dx, dy) => `${(x + dx * r).toFixed(1)} ${(y + dy * r).toFixed(1)}`;
  return `M${at(-1, -1)}L${at(1, 1)}M${at(-1, 1)}L${at(1, -1)}`;
}

function jobColumns(goTo) {
  const text = (key, label) => ({ key, label, value: (row) => row[key], cell: (row) => row[key] });
  const number = (key, label, digits) => ({ key, label, numeric: true, value: (row) => row[key], cell: (row) => fixed(row[key], digits) });
  const used = { key: "used", label: "Used of SLO", numeric: true, value: (row) => row.used,
    cell: (row) => make("span", { class: row.met ? null : "broken" }, `${row.met ? "" : "✕ "}${row.used === null ? "–" : `${(100 * row.used).toFixed(1)} %`}`) };
  return [jobColumn(goTo), text("run", "Policy"), used, number("slowdown", "Slowdown ×", 3), number("slo", "SLO ×", 2),
    number("arrival_h", "Arrived h", 2), number("started_h", "Started h", 2), number("ended_h", "Ended h", 2),
    number("iterations", "Iterations", 0), number("solo_s", "Alone s", 1), number("iteration_s", "Iteration s", 1),
    text("group", "Group"), text("admission", "Admission"), number("moves", "Moves", 0), number("restarts", "Restarts", 0)];
}

function jobTable(runs, rows, goTo) {
  const table = sortedTable({ id: "job-table", caption: "Every job of every policy", columns: jobColumns(goTo), rows, sortBy: "used", descending: true, what: "jobs" });
  const search = make("input", { type: "search", id: "job-search", input: apply });
  const policy = policyPick("job-policy", runs, apply);
  const onlyBroken = make("input", { type: "checkbox", id: "job-broken", change: apply });
  function apply() {
    const words = search.value.trim().toLowerCase();
    table.filter((row) => (policy.value === "" || row.place === Number(policy.value)) && !(onlyBroken.checked && row.met)
      && (!words || [row.job, row.group, row.admission].some((text) => text.toLowerCase().includes(words))));
  }
  return make("div", {}, make("div", { class: "controls" }, labelled("Search job, group, admission", search), labelled("Policy", policy),
    make("label", { class: "check" }, onlyBroken, "Only broken SLOs")), table.element);
}

function policyPick(id, runs, changed) {
  return make("select", { id, change: changed }, option("", "all"), ...runs.map((run, place) => option(place, run.name)));
}
