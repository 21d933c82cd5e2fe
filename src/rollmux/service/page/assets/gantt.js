// The timeline: a lane for each group, a row for each of its nodes. What is drawn can be read as a table, too, and gone
// through with the arrow keys, which say each phase in words.
const ROW_PX = 24;
const SPAN_PX = 18;
const AXIS_PX = 22;
const NARROW_PX = 1.2;
const TICKS_S = [30, 60, 120, 300, 600, 900];
const MOST_ROWS = 200;

const view = { windowS: 900, picked: null, lanes: new Map() };

// Groups with their nodes in natural order; of a node that is gone, the group of its last phase.
function lanesNow() {
  const first = now() - view.windowS;
  const groupOf = new Map(store.cluster.nodes.map((node) => [node.node, node.group]));
  const nodes = new Map(store.cluster.nodes.map((node) => [node.node, node]));
  for (const span of store.spans.values()) {
    for (const use of span.uses) if (!groupOf.has(use.node) && (use.ended_s === null || use.ended_s > first)) groupOf.set(use.node, span.group);
  }
  const lanes = new Map();
  for (const [node, group] of groupOf) {
    if (!lanes.has(group)) lanes.set(group, []);
    lanes.get(group).push({ node, view: nodes.get(node) ?? null });
  }
  for (const rows of lanes.values()) rows.sort((one, other) => natural(one.node, other.node));
  return new Map([...lanes].sort(([one], [other]) => (one === "") - (other === "") || natural(one, other)));
}

// The phases of each node in time, as [from, to, span].
function usesByNode() {
  const found = new Map();
  for (const span of store.spans.values()) {
    for (const use of span.uses) {
      if (!found.has(use.node)) found.set(use.node, []);
      found.get(use.node).push({ from: use.began_s, to: use.ended_s, span });
    }
  }
  for (const uses of found.values()) uses.sort((one, other) => one.from - other.from);
  return found;
}

function drawLanes() {
  const all = lanesNow();
  let rowsLeft = MOST_ROWS;
  const lanes = new Map();
  for (const [group, rows] of all) {
    if (rowsLeft <= 0) break;
    lanes.set(group, rows);
    rowsLeft -= rows.length;
  }
  const more = all.size - lanes.size;
  setText(byId("more-lanes"), more ? `${counted(more, "more group is", "more groups are")} not drawn: rollmux status shows all.` : "");
  const nodes = whoIsWhere();
  const host = byId("lanes");
  for (const [group, lane] of view.lanes) {
    if (!lanes.has(group)) {
      lane.section.remove();
      view.lanes.delete(group);
    }
  }
  rowsLeft = MOST_ROWS;
  let before = null;
  for (const [group, rows] of lanes) {
    if (!view.lanes.has(group)) view.lanes.set(group, newLane(group));
    const lane = view.lanes.get(group);
    lane.rows = rows.slice(0, rowsLeft);
    rowsLeft -= lane.rows.length;
    const wanted = before === null ? host.firstElementChild : before.nextElementSibling;
    if (wanted !== lane.section) host.insertBefore(lane.section, wanted);
    before = lane.section;
    describeLane(lane, rows.length, nodes);
  }
  let none = byId("no-lanes");
  if (!lanes.size && !none) host.append(make("p", { id: "no-lanes", class: "note" }, "No nodes yet: they come with the first job."));
  if (lanes.size && none) none.remove();
}

function newLane(group) {
  const canvas = make("canvas", { "aria-hidden": "true" });
  const stage = make("div", { class: "stage", tabindex: "0", role: "application", "aria-roledescription": "timeline" }, canvas);
  const lane = { group, canvas, stage, rows: [], names: make("ol", { class: "names" }), holds: make("ol", { class: "holds" }), head: make("h3", {}), seen: true };
  lane.section = make("section", { class: "lane" }, lane.head, make("div", { class: "rows" }, lane.names, stage, lane.holds));
  stage.addEventListener("keydown", (event) => walk(lane, event));
  stage.addEventListener("pointermove", (event) => point(lane, event));
  stage.addEventListener("pointerdown", (event) => point(lane, event));
  stage.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch" && document.activeElement !== stage) pick(null); });
  stage.addEventListener("blur", () => pick(null));
  new IntersectionObserver((entries) => { lane.seen = entries.at(-1).isIntersecting; if (lane.seen) drawCanvas(lane, usesByNode()); }, { rootMargin: "200px" }).observe(stage);
  new ResizeObserver(() => drawCanvas(lane, usesByNode())).observe(stage);
  return lane;
}

function describeLane(lane, count, nodes) {
  const members = store.cluster.jobs.filter((job) => job.group === lane.group && lane.group !== "");
  const price = members.reduce((sum, job) => sum + (store.bills.get(job.job)?.usd_per_hour ?? 0), 0);
  const chips = members.map((job) => make("span", { class: "member" }, chip(job.job), make("span", { class: "name" }, job.job)));
  const title = lane.group === "" ? "In no group" : lane.group;
  const more = count > lane.rows.length ? ` · ${count - lane.rows.length} more in the table` : "";
  show(lane.head, make("span", { class: "title" }, title), ...chips, make("span", { class: "note" }, `${counted(count, "node", "nodes")}${price ? ` · ${usd(price)}/h` : ""}${more}`));
  lane.stage.setAttribute("aria-label", `${title}, ${counted(count, "node", "nodes")}. Arrow keys go from phase to phase and from node to node.`);
  show(lane.names, ...lane.rows.map(({ node, view }) => make("li", {}, make("span", { class: "name" }, node), stateOf(view))));
  show(lane.holds, ...lane.rows.map((row) => make("li", {}, ...holding(row, nodes.get(row.node)))));
}

function stateOf(node) {
  if (node === null) return make("span", { class: "state coming" }, "gone");
  if (node.state !== "ready") return make("span", { class: `state ${node.state}` }, node.state === "lost" ? "✕ lost" : "… coming");
  return node.cordoned ? make("span", { class: "state" }, "⊘ draining") : null;
}

// Who holds each node, and who waits for it.
function whoIsWhere() {
  const found = new Map();
  const at = (node) => found.get(node) ?? found.set(node, { held: null, queue: [] }).get(node);
  for (const span of store.spans.values()) {
    if (span.ended_s === null) for (const use of span.uses) if (use.ended_s === null) at(use.node).held = span;
  }
  for (const job of store.cluster.jobs) {
    for (const lane of job.lanes) if (lane.state === "waiting") for (const node of lane.nodes) at(node).queue.push(job);
  }
  return found;
}

function holding({ view: row }, { held, queue } = { held: null, queue: [] }) {
  const parts = [];
  if (held) {
    const since = held.started_s ?? held.began_s;
    const word = held.fenced ? "✕ lost" : held.kind === "offload" ? "moves out" : held.started_s === null ? "moves in" : held.iteration >= 0 ? `${held.kind} ${held.iteration}` : held.kind;
    parts.push(chip(held.job), make("span", { class: "name" }, held.job), make("span", { class: "note" }, `${word} ${lasting(Math.max(0, now() - since))}`));
  } else parts.push(make("span", { class: "note" }, row === null ? "" : "idle"));
  if (queue.length) parts.push(make("span", { class: "next" }, `◌ next: ${queue[0].job}${queue.length > 1 ? ` +${queue.length - 1}` : ""}`));
  return parts;
}

// -- drawing ---------------------------------------------------------------------------------------------------------

let pens = null;

function readPens() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  pens = { jobs: [...Array(COLOURS).keys()].map((colour) => read(`job-${colour}`)), edge: [...Array(COLOURS).keys()].map((colour) => read(`edge-${colour}`)), other: read("other"), ink: read("job-ink"), rule: read("rule"),
    muted: read("muted"), track: read("track"), bad: read("bad"), accent: read("accent"), paper: read("paper"), veil: read("veil"), font: getComputedStyle(document.body).fontFamily };
}

function stripes(pen, left, top, width, height, step, slope) {
  pen.save();
  pen.beginPath();
  pen.rect(left, top, width, height);
  pen.clip();
  pen.beginPath();
  for (let x = left - height - ((left * slope) % step); x < left + width + height; x += step) {
    pen.moveTo(x, slope > 0 ? top + height : top);
    pen.lineTo(x + height, slope > 0 ? top : top + height);
  }
  pen.stroke();
  pen.restore();
}

function drawCanvas(lane, uses) {
  const width = lane.stage.clientWidth;
  if (!width || !lane.seen || !pens) return;
  const height = AXIS_PX + lane.rows.length * ROW_PX;
  const ratio = devicePixelRatio || 1;
  const { canvas } = lane;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  const end = now();
  const scale = { from: end - view.windowS, end, width, x: (at) => (at - (end - view.windowS)) / view.windowS * width };
  drawAxis(pen, scale, height);
  lane.shown = lane.rows.map(({ node }, row) => {
    const top = AXIS_PX + row * ROW_PX + (ROW_PX - SPAN_PX) / 2;
    pen.fillStyle = pens.track;
    pen.fillRect(0, top + SPAN_PX / 2 - 0.5, width, 1);
    const inside = (uses.get(node) ?? []).filter((use) => (use.to ?? end) > scale.from);
    for (const use of inside) drawUse(pen, scale, top, use);
    return inside;
  });
  drawPicked(pen, scale, lane);
  pen.fillStyle = pens.accent;
  pen.fillRect(width - 2, AXIS_PX - 4, 2, height - AXIS_PX + 4);
  const unknown = scale.x(Math.max(store.wholeFrom, 0));
  if (unknown > 1) {
    pen.fillStyle = pens.veil;
    pen.fillRect(0, AXIS_PX, Math.min(width, unknown), height - AXIS_PX);
    pen.fillStyle = pens.muted;
    pen.textAlign = "center";
    if (unknown > 90) pen.fillText("no record", Math.min(width, unknown) / 2, AXIS_PX + (height - AXIS_PX) / 2);
  }
}

function drawAxis(pen, scale, height) {
  pen.font = `11px ${pens.font}`;
  pen.textBaseline = "middle";
  const step = TICKS_S.find((tick) => tick / view.windowS * scale.width >= 64) ?? 900;
  for (let ago = 0; ago < view.windowS; ago += step) {
    const x = Math.round(scale.x(scale.end - ago)) - (ago === 0 ? 1 : 0);
    pen.fillStyle = pens.rule;
    if (ago) pen.fillRect(x, AXIS_PX - 4, 1, height - AXIS_PX + 4);
    pen.fillStyle = pens.muted;
    const text = ago === 0 ? "now" : ago % 60 ? `−${Math.floor(ago / 60)}:30` : `−${ago / 60} min`;
    pen.textAlign = ago === 0 ? "right" : "center";
    if (ago === 0 || x > 26) pen.fillText(text, x, AXIS_PX / 2 - 1);
  }
}

function drawUse(pen, scale, top, { from, to, span }) {
  const left = Math.max(-4, scale.x(from));
  const right = scale.x(to ?? scale.end);
  const width = Math.max(NARROW_PX, right - left - (right - left > 4 ? 1 : 0));
  const look = lookOf(span.job);
  const mine = look !== null;
  pen.fillStyle = mine ? pens.jobs[look.colour] : pens.other;
  pen.strokeStyle = pens.ink;
  pen.lineWidth = 1;
  if (span.kind === "offload") {
    pen.fillRect(left, top + SPAN_PX / 2, width, SPAN_PX / 2);
    stripes(pen, left, top + SPAN_PX / 2, width, SPAN_PX / 2, 5, -1);
    return;
  }
  pen.fillRect(left, top, width, SPAN_PX);
  if (width < 3) return;
  pen.fillStyle = mine ? pens.edge[look.colour] : pens.muted;
  if (mine && look.form > 0) for (let line = 0; line < look.form; line++) pen.fillRect(left, top + SPAN_PX - 3 - 4 * line, width, 2);
  if (width > 8) pen.fillRect(left, top, 2, SPAN_PX);
  const loaded = scale.x(span.started_s ?? span.ended_s ?? scale.end);
  if (span.load && loaded - left > 2) stripes(pen, left, top, Math.min(width, loaded - left), SPAN_PX, 5, 1);
  if (span.fenced || span.how === "failed" || span.how === "gone") {
    pen.strokeStyle = pens.bad;
    pen.lineWidth = 2;
    pen.strokeRect(left + 1, top + 1, Math.max(1, width - 2), SPAN_PX - 2);
    cross(pen, left + width - 7, top + SPAN_PX / 2);
  } else if (span.how === "paused" && width > 10) {
    pen.fillStyle = pens.ink;
    pen.fillRect(left + width - 6, top + 5, 2, SPAN_PX - 10);
    pen.fillRect(left + width - 3, top + 5, 2, SPAN_PX - 10);
  }
  label(pen, span, Math.max(0, left), top, left + width);
}

function cross(pen, x, y) {
  pen.beginPath();
  pen.moveTo(x - 3, y - 3);
  pen.lineTo(x + 3, y + 3);
  pen.moveTo(x + 3, y - 3);
  pen.lineTo(x - 3, y + 3);
  pen.stroke();
}

function label(pen, span, left, top, right) {
  const room = right - left - 10;
  if (room < 14) return;
  pen.font = `11px ${pens.font}`;
  const full = span.iteration >= 0 ? `${span.job} ${span.iteration}` : span.job;
  const text = pen.measureText(full).width <= room ? full : span.iteration >= 0 && pen.measureText(`${span.iteration}`).width <= room ? `${span.iteration}` : "";
  if (!text) return;
  const width = pen.measureText(text).width;
  if (span.load) {
    pen.fillStyle = pens.jobs[lookOf(span.job)?.colour ?? 0];
    pen.fillRect(left + 3, top + 3, width + 5, SPAN_PX - 6);
  }
  pen.fillStyle = pens.ink;
  pen.textAlign = "left";
  pen.textBaseline = "middle";
  pen.fillText(text, left + 6, top + SPAN_PX / 2 + 0.5);
}

function drawPicked(pen, scale, lane) {
  if (view.picked === null || view.picked.lane !== lane) return;
  const { row, use } = view.picked;
  const top = AXIS_PX + row * ROW_PX;
  pen.strokeStyle = pens.accent;
  pen.lineWidth = 2;
  if (use === null) pen.strokeRect(1, top + 1, scale.width - 2, ROW_PX - 2);
  else {
    const left = Math.max(1, scale.x(use.from) - 1);
    pen.strokeRect(left, top + 1, Math.max(4, scale.x(use.to ?? scale.end) - left), ROW_PX - 2);
  }
}

// -- going through it ------------------------------------------------------------------------------------------------

function pick(picked) {
  const before = view.picked?.lane;
  view.picked = picked;
  setText(byId("picked"), picked === null ? "" : sayPicked(picked));
  const uses = usesByNode();
  for (const lane of new Set([before, picked?.lane])) if (lane) drawCanvas(lane, uses);
}

function sayPicked({ lane, row, use }) {
  const { node } = lane.rows[row];
  return use === null ? `${node}: nothing in this window` : `${node}: ${saySpan(use.span, use)}`;
}

function saySpan(span, use) {
  const end = use.to ?? now();
  const name = span.iteration >= 0 ? `${span.kind} ${span.iteration}` : span.kind;
  const parts = [`${span.job}, ${name}`, `${lasting(end - use.from)}${use.to === null ? " so far" : ""}`, use.to === null ? "goes on" : `ended ${lasting(Math.max(0, now() - use.to))} ago`];
  if (span.load && span.started_s !== null && span.started_s - span.began_s >= 0.05) parts.push(`moved in ${lasting(span.started_s - span.began_s)}`);
  else if (span.started_s === null && span.how === "") parts.push("is moved in");
  if (span.waited_s >= 0.05) parts.push(`waited ${lasting(span.waited_s)}`);
  if (span.fenced) parts.push("its lease was over");
  else if (span.how && span.how !== "finished") parts.push(HOWS[span.how] ?? span.how);
  else if (use.to !== null && span.ended_s === null) parts.push("given back early");
  return parts.join(", ");
}

const HOWS = { paused: "paused, goes on later", failed: "failed", gone: "its attempt ended", fenced: "its lease was over" };

function walk(lane, event) {
  const keys = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "Escape"];
  if (!keys.includes(event.key) || !lane.rows.length || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  if (event.key === "Escape") return pick(null);
  const at = view.picked?.lane === lane ? view.picked : { lane, row: 0, use: null };
  const step = { ArrowUp: -1, ArrowDown: 1 }[event.key] ?? 0;
  const row = view.picked?.lane === lane ? clamp(at.row + step, 0, lane.rows.length - 1) : 0;
  const uses = lane.shown?.[row] ?? [];
  let place = uses.findIndex((use) => use.span === at.use?.span && use.from === at.use?.from);
  if (row !== at.row || place < 0) {
    const moment = at.use ? at.use.from : now();
    place = uses.findLastIndex((use) => use.from <= moment);
    if (place < 0) place = uses.length - 1;
  } else place += { ArrowLeft: -1, ArrowRight: 1 }[event.key] ?? 0;
  if (event.key === "Home") place = 0;
  if (event.key === "End") place = uses.length - 1;
  pick({ lane, row, use: uses[clamp(place, 0, uses.length - 1)] ?? null });
}

function point(lane, event) {
  const box = lane.canvas.getBoundingClientRect();
  const row = Math.floor((event.clientY - box.top - AXIS_PX) / ROW_PX);
  const at = now() - view.windowS * (1 - (event.clientX - box.left) / box.width);
  const use = lane.shown?.[row]?.findLast((each) => each.from <= at && at < (each.to ?? Infinity));
  if (use) pick({ lane, row, use });
  else if (view.picked !== null && document.activeElement !== lane.stage) pick(null);
}

// -- the same as a table ---------------------------------------------------------------------------------------------

const MOST_LINES = 300;

function drawTable() {
  const host = byId("spans");
  if (!host.open) return;
  const first = now() - view.windowS;
  const lines = [...store.spans.values()].filter((span) => (span.ended_s ?? now()) > first).sort((one, other) => other.began_s - one.began_s);
  const rows = lines.slice(0, MOST_LINES).map((span) => make("tr", {}, make("td", { class: "number" }, `${lasting(Math.max(0, now() - span.began_s))} ago`), make("th", { scope: "row" }, span.job),
    make("td", {}, span.iteration >= 0 ? `${span.kind} ${span.iteration}` : span.kind), make("td", {}, span.group), make("td", {}, span.uses.map((use) => use.node).join(", ") || "no node"),
    make("td", { class: "number" }, lasting(span.waited_s)), make("td", { class: "number" }, lasting((span.ended_s ?? now()) - span.began_s)), make("td", {}, span.ended_s === null ? (span.fenced ? "its lease was over" : "goes on") : HOWS[span.how] ?? span.how)));
  const heads = ["Granted", "Job", "Phase", "Group", "Nodes", "Waited", "Held for", "End"].map((head) => make("th", { scope: "col", class: ["Granted", "Waited", "Held for"].includes(head) ? "number" : null }, head));
  const more = lines.length > MOST_LINES ? ` The latest ${MOST_LINES} of ${lines.length}.` : "";
  show(host.querySelector(".scroll"), make("table", { id: "span-table" }, make("caption", { class: "note" }, `Phases of the last ${view.windowS / 60} minutes, the latest first.${more}`), make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows)));
}
