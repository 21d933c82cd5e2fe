// The timeline of one group: which, which window of it, and what the cursor is on.
const SHORTEST_MS = 1000;
const TABLE_SPANS = 200;

function showGantt(host, runs) {
  const drawn = runs.map((run, place) => [run, place]).filter(([run]) => run.has_spans);
  if (!drawn.length) {
    host.append(plain(runs.some((run) => run.at.length) ? "No spans were recorded: jobs that run at their forecast pace play no single phase."
      : "No spans were recorded: they are kept only where history is asked for."));
    return () => {};
  }
  const view = { runs, canvas: make("canvas", { "aria-hidden": "true" }), highlighted: 0, lane: 0, chosen: null };
  const policy = make("select", { id: "gantt-policy", change: () => choosePolicy(view) }, ...drawn.map(([run, place]) => option(place, run.name)));
  view.parts = { policy, group: make("select", { id: "gantt-group", change: () => chooseGroup(view) }),
    highlight: make("select", { id: "gantt-job", change: () => highlight(view) }),
    from: hourInput("gantt-from", () => typeWindow(view)), to: hourInput("gantt-to", () => typeWindow(view)),
    status: make("p", { class: "readout", role: "status", id: "gantt-status" }),
    stage: make("div", { class: "stage", tabindex: 0, role: "application", "aria-label": "Timeline of the group", "aria-describedby": "gantt-keys" }, view.canvas),
    note: make("p", { class: "note" }), spans: spanTable(view) };
  const { stage } = view.parts;
  view.redraw = keepDrawn(stage, (width) => drawGantt(view, width));
  listen(view, stage);
  host.append(ganttControls(view), ganttKey(), stage, view.parts.status, view.parts.note, ganttKeys(), view.parts.spans.element);
  choosePolicy(view);
  return (place, group, job) => goTo(view, place, group, job);
}

function hourInput(id, change) {
  return make("input", { type: "number", id, step: "any", min: 0, change });
}

function ganttControls(view) {
  const { policy, group, highlight, from, to } = view.parts;
  const button = (text, name, click) => make("button", { type: "button", "aria-label": name, title: name, click }, text);
  return make("div", { class: "controls" }, labelled("Policy", policy), labelled("Group", group), labelled("Highlight job", highlight),
    labelled("From h", from), labelled("To h", to),
    make("div", { class: "buttons", role: "group", "aria-label": "Move the window" },
      button("◀", "Earlier", () => pan(view, -0.5)), button("▶", "Later", () => pan(view, 0.5)),
      button("+", "Zoom in", () => zoom(view, 0.5, middle(view))), button("−", "Zoom out", () => zoom(view, 2, middle(view))),
      button("Whole", "Whole time of the group", () => setWindow(view, view.group.first, view.group.last))));
}

function ganttKey() {
  const entry = (kind, text) => make("li", {}, make("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), text);
  return make("ul", { class: "key", "aria-label": "How spans are drawn" }, entry("phase", "rollout or training, a colour per job"), entry("tail", "tail"),
    entry("switching", "switch"), entry("merged", "many short spans: as high as the node was busy, fainter on top while it switched"), entry("empty-time", "idle; blank where the node was not yet, or no longer, in the group"));
}

function ganttKeys() {
  return make("p", { class: "note", id: "gantt-keys" }, "With the timeline in focus: arrow left and right pan, + and − zoom, 0 shows the whole, Home and End go to ",
    "either end, arrow up and down choose a node, Shift with arrow left and right step from span to span. Drag to pan; Ctrl with the wheel zooms.");
}

function choosePolicy(view, group = null) {
  view.place = Number(view.parts.policy.value);
  view.timeline = timelineOf(view.place);
  const { groups } = view.timeline;
  const spans = groups.map((found) => found.lanes.reduce((sum, lane) => sum + lane.gap.length, 0));
  view.parts.group.replaceChildren(...groups.map((found, i) => option(found.name, `${found.name} (${counted(found.lanes.length, "node", "nodes")}, ${counted(spans[i], "span", "spans")})`)));
  view.parts.group.value = group ?? groups[spans.indexOf(Math.max(...spans))].name;
  chooseGroup(view);
}

function chooseGroup(view) {
  view.group = groupOf(view.place, view.parts.group.value);
  view.chosen = null;
  view.highlighted = 0;
  view.parts.highlight.replaceChildren(option(0, "none"), ...[...view.group.jobs.keys()].map((job) => option(job + 1, view.timeline.jobs[job])));
  const { lanes } = view.group;
  view.parts.note.textContent = lanes.length > MOST_LANES ? `Only the first ${MOST_LANES} of ${lanes.length} nodes are drawn.` : "";
  begin(view, firstWindow(view.group));
}

// Goes to a window, with the cursor on the first node at work there, or on the first at work for this job.
function begin(view, [from, to], job = null) {
  const works = (lane) => {
    const [first, past] = within(lane, from, to);
    return job === null ? first < past : lane.job.slice(first, past).includes(job);
  };
  view.lane = Math.max(0, view.group.lanes.findIndex(works));
  setWindow(view, from, to);
}

function highlight(view) {
  view.highlighted = Number(view.parts.highlight.value);
  view.redraw();
}

function typeWindow(view) {
  const [from, to] = [view.parts.from, view.parts.to].map((input) => Number(input.value) * 3600000);
  if (to > from) setWindow(view, from, to);
  else view.parts.status.textContent = "The window must end after it begins.";
}

function setWindow(view, from, to) {
  const { first, last } = view.group;
  const long = clamp(to - from, SHORTEST_MS, Math.max(SHORTEST_MS, last - first));
  view.from = clamp(from, first, Math.max(first, last - long));
  view.to = view.from + long;
  const { chosen } = view;
  if (chosen && (chosen.lane.end[chosen.i] < view.from || chosen.lane.start[chosen.i] > view.to)) view.chosen = null;
  view.parts.from.value = (view.from / 3600000).toFixed(4);
  view.parts.to.value = (view.to / 3600000).toFixed(4);
  view.parts.stage.dataset.from = view.from;
  view.parts.stage.dataset.to = view.to;
  say(view);
  view.parts.spans.fill();
  requestAnimationFrame(view.redraw);
}

function pan(view, part) {
  const by = part * (view.to - view.from);
  setWindow(view, view.from + by, view.to + by);
}

// The time at `anchor` (0 to 1 across the window) stays where it is.
function zoom(view, factor, anchor) {
  const long = clamp((view.to - view.from) * factor, SHORTEST_MS, view.group.last - view.group.first);
  const from = view.from + (view.to - view.from - long) * anchor;
  setWindow(view, from, from + long);
}

// Where keys and buttons zoom to: the chosen span, else the middle of the window.
function middle({ chosen, from, to }) {
  return chosen ? clamp(((chosen.lane.start[chosen.i] + chosen.lane.end[chosen.i]) / 2 - from) / (to - from), 0, 1) : 0.5;
}

function say(view) {
  const { chosen, group } = view;
  view.parts.status.textContent = chosen ? spanText(view.timeline, chosen.lane, chosen.i)
    : `${group.lanes[view.lane].node}. Window ${clock(view.from)} to ${clock(view.to)} of ${clock(group.first)} to ${clock(group.last)}, in hours, minutes, seconds.`;
}

function chooseLane(view, by) {
  view.lane = clamp(view.lane + by, 0, Math.min(view.group.lanes.length, MOST_LANES) - 1);
  view.chosen = null;
  say(view);
  view.redraw();
}

function stepSpan(view, by) {
  const lane = view.group.lanes[view.lane];
  const [first, past] = within(lane, view.from, view.to);
  const from = view.chosen ? view.chosen.i + by : (by > 0 ? first : past - 1);
  const i = clamp(from, 0, lane.size - 1);
  view.chosen = { lane, i };
  const long = view.to - view.from;
  if (lane.start[i] < view.from || lane.end[i] > view.to) setWindow(view, (lane.start[i] + lane.end[i] - long) / 2, (lane.start[i] + lane.end[i] + long) / 2);
  say(view);
  view.redraw();
}

function keyed(view, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { first, last } = view.group;
  const long = view.to - view.from;
  const acts = {
    ArrowLeft: () => event.shiftKey ? stepSpan(view, -1) : pan(view, -0.2),
    ArrowRight: () => event.shiftKey ? stepSpan(view, 1) : pan(view, 0.2),
    ArrowUp: () => chooseLane(view, -1), ArrowDown: () => chooseLane(view, 1),
    "+": () => zoom(view, 0.5, middle(view)), "=": () => zoom(view, 0.5, middle(view)), "-": () => zoom(view, 2, middle(view)),
    _: () => zoom(view, 2, middle(view)),
    0: () => setWindow(view, first, last), Home: () => setWindow(view, first, first + long), End: () => setWindow(view, last - long, last),
    Escape: () => chooseLane(view, 0),
  };
  if (!acts[event.key]) return;
  event.preventDefault();
  acts[event.key]();
}

// The span under a point, with three pixels to spare.
function hit(view, event) {
  const box = view.canvas.getBoundingClientRect();
  const place = Math.floor((event.clientY - box.top - LANE.top) / (LANE.height + LANE.gap));
  const lane = view.group.lanes[place];
  const perPx = (view.to - view.from) / (box.width - gutter(box.width) - LANE.busy);
  const at = view.from + (event.clientX - box.left - gutter(box.width)) * perPx;
  if (!lane || at < view.from || at > view.to) return null;
  const [first, past] = within(lane, at - 3 * perPx, at + 3 * perPx);
  let best = null;
  for (let i = first; i < past; i++) {
    const away = Math.max(lane.start[i] - at, at - lane.end[i], 0);
    if (!best || away < best.away) best = { lane, place, i, away };
  }
  return best;
}

function listen(view, stage) {
  let drag = null;
  stage.addEventListener("keydown", (event) => keyed(view, event));
  const choose = (event) => {
    const found = hit(view, event);
    if (found) view.lane = found.place;
    if ((found?.lane !== view.chosen?.lane) || (found?.i !== view.chosen?.i)) {
      view.chosen = found;
      say(view);
      view.redraw();
    }
  };
  stage.addEventListener("pointerdown", (event) => {
    choose(event); // a finger has not moved there before
    drag = { x: event.clientX, from: view.from, to: view.to };
    stage.setPointerCapture(event.pointerId);
  });
  stage.addEventListener("pointerup", () => drag = null);
  stage.addEventListener("pointercancel", () => drag = null);
  stage.addEventListener("pointermove", (event) => {
    if (drag) {
      const perPx = (drag.to - drag.from) / (stage.clientWidth - gutter(stage.clientWidth) - LANE.busy);
      const by = (drag.x - event.clientX) * perPx;
      return setWindow(view, drag.from + by, drag.to + by);
    }
    choose(event);
  });
  stage.addEventListener("wheel", (event) => {
    const inner = stage.clientWidth - gutter(stage.clientWidth) - LANE.busy;
    const anchor = clamp((event.clientX - stage.getBoundingClientRect().left - gutter(stage.clientWidth)) / inner, 0, 1);
    if (event.ctrlKey || event.metaKey) zoom(view, 2 ** (event.deltaY / 200), anchor);
    else if (event.deltaX || event.shiftKey) pan(view, (event.deltaX || event.deltaY) / inner);
    else return;
    event.preventDefault();
  }, { passive: false });
}

// The spans of the window in words, for those who can't see the drawing; filled only while it is open.
function spanTable(view) {
  const body = make("tbody");
  const head = ["Node", "Job", "Kind", "Iteration", "Start", "End", "Lasts"];
  const caption = captioned("");
  const element = make("details", { toggle: fill }, make("summary", {}, "The spans of this window as a table"),
    make("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "Spans of the window" },
      make("table", { id: "span-table" }, caption, make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { scope: "col" }, text)))), body)));
  function fill() {
    if (!element.open) return;
    const { jobs, kinds } = view.timeline;
    const rows = [];
    let total = 0;
    for (const lane of view.group.lanes) {
      const [first, past] = within(lane, view.from, view.to);
      total += past - first;
      for (let i = first; i < past && rows.length < TABLE_SPANS; i++) {
        const cells = [jobs[lane.job[i]], kinds[lane.kind[i]], lane.iteration[i], clock(lane.start[i]), clock(lane.end[i]), lasting(lane.end[i] - lane.start[i])];
        rows.push(make("tr", {}, make("th", { scope: "row" }, lane.node), ...cells.map((text) => make("td", {}, text))));
      }
    }
    caption.firstChild.textContent = total > rows.length ? `The first ${rows.length} of ${grouped(total, 0)} spans in the window: zoom in to see the rest` : `All ${rows.length} spans in the window`;
    body.replaceChildren(...rows);
  }
  return { element, fill };
}

function goTo(view, place, group, job) {
  const { policy, stage } = view.parts;
  policy.value = String(place);
  const timeline = timelineOf(place);
  const number = timeline.jobs.indexOf(job);
  const holds = (found) => found.lanes.some((lane) => lane.job.includes(number));
  const target = timeline.groups.find((found) => found.name === group && holds(found)) ?? timeline.groups.find(holds);
  choosePolicy(view, target?.name ?? null);
  if (target) {
    const from = Math.min(...view.group.lanes.map((lane) => lane.job.includes(number) ? lane.start[lane.job.indexOf(number)] : Infinity));
    view.parts.highlight.value = String(number + 1);
    highlight(view);
    begin(view, readableWindow(view.group, from), number);
  }
  stage.scrollIntoView({ block: "center", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  stage.focus({ preventScroll: true });
}
