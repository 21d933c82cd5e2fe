// The timeline on its canvas. Only what stands in the window is drawn; spans too narrow to see become columns: as high
// as the node worked in that time, and on top of that a fainter part as high as it switched.
const LANE = { height: 28, gap: 4, top: 34, name: 104, busy: 54 };
const MOST_LANES = 400;
const NARROW_PX = 2;
const JOB_COLOURS = 8;
const TICKS_S = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400];

function gutter(width) {
  return width < 560 ? 92 : LANE.name;
}

function canvasColours(element) {
  const style = getComputedStyle(element);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  const jobs = Array.from({ length: JOB_COLOURS }, (_, i) => read(`job-${i}`));
  return { jobs, ink: read("ink"), muted: read("muted"), idle: read("idle"), merged: read("merged"), switched: read("switched"), paper: read("paper"),
    accent: read("accent"), rule: read("rule"), jobInk: read("job-ink") };
}

// Stripes for tails, crossed lines for switches, dots for anything else that is no phase.
function texture(context, kind, colour) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = tile.getContext("2d");
  pen.strokeStyle = pen.fillStyle = colour;
  pen.lineWidth = 1.4;
  pen.beginPath();
  if (kind === "tail" || kind === "switch") for (const shift of [-8, 0, 8]) {
    pen.moveTo(shift, 8);
    pen.lineTo(shift + 8, 0);
  }
  if (kind === "switch") for (const shift of [-8, 0, 8]) {
    pen.moveTo(shift, 0);
    pen.lineTo(shift + 8, 8);
  }
  if (kind !== "tail" && kind !== "switch") pen.arc(4, 4, 1.4, 0, 7);
  if (kind === "tail" || kind === "switch") pen.stroke();
  else pen.fill();
  return context.createPattern(tile, "repeat");
}

function drawGantt(view, width) {
  const { canvas, group } = view;
  const lanes = group.lanes.slice(0, MOST_LANES);
  const height = LANE.top + lanes.length * (LANE.height + LANE.gap) + 4;
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  const colours = canvasColours(canvas);
  const left = gutter(width);
  const inner = width - left - LANE.busy;
  const perMs = inner / (view.to - view.from);
  const textures = new Map(view.timeline.kinds.map((kind) => [kind, kind === "rollout" || kind === "train" ? null : texture(context, kind, colours.jobInk)]));
  const frame = { view, context, colours, textures, left, inner, width, height, perMs, x: (ms) => left + (ms - view.from) * perMs };
  drawAxis(frame);
  lanes.forEach((lane, place) => drawLane(frame, lane, place));
}

function drawAxis({ view, context, colours, left, inner, height, x }) {
  const { group } = view;
  context.fillStyle = colours.rule;
  context.fillRect(left, 2, inner, 4);
  const long = group.last - group.first || 1;
  context.fillStyle = colours.accent;
  context.fillRect(left + (view.from - group.first) / long * inner, 1, Math.max(3, (view.to - view.from) / long * inner), 6);
  const wanted = (view.to - view.from) / 1000 / clamp(Math.floor(inner / 84), 2, 12);
  const step = 1000 * (TICKS_S.find((tick) => tick >= wanted) ?? Math.ceil(wanted / 86400) * 86400);
  context.font = "12px system-ui, sans-serif";
  context.textAlign = "center";
  for (let ms = Math.ceil(view.from / step) * step; ms <= view.to; ms += step) {
    context.fillStyle = colours.rule;
    context.fillRect(Math.round(x(ms)), LANE.top - 6, 1, height - LANE.top + 6);
    context.fillStyle = colours.muted;
    context.fillText(clock(ms, step < 60000), clamp(x(ms), left + 22, left + inner - 22), LANE.top - 11);
  }
  context.textAlign = "right";
  context.fillStyle = colours.muted;
  context.fillText("busy", left + inner + LANE.busy - 2, LANE.top - 11);
}

function drawLane(frame, lane, place) {
  const { view, context, colours, left, inner, perMs } = frame;
  const top = LANE.top + place * (LANE.height + LANE.gap);
  const [came, went] = [Math.max(view.from, lane.start[0]), Math.min(view.to, lane.reach[lane.size - 1])];
  const stay = Math.max(0, went - came);
  context.fillStyle = colours.idle;
  context.fillRect(frame.x(came), top, stay * perMs, LANE.height);
  const worked = new Float32Array(Math.ceil(inner) + 1);
  const switched = new Float32Array(worked.length);
  const [first, past] = within(lane, view.from, view.to);
  let busy = 0;
  for (let i = first; i < past; i++) {
    const start = Math.max(lane.start[i], view.from);
    const end = Math.min(lane.end[i], view.to);
    const isSwitch = view.timeline.kinds[lane.kind[i]] === "switch";
    if (!isSwitch) busy += Math.max(0, end - start);
    const from = (start - view.from) * perMs;
    const to = (end - view.from) * perMs;
    if (to - from >= NARROW_PX) drawSpan(frame, lane, i, top, left + from, to - from);
    else if (!view.highlighted || view.highlighted === lane.job[i] + 1) addNarrow(isSwitch ? switched : worked, from, to);
  }
  const bottom = top + LANE.height;
  for (let column = 0; column < worked.length; column++) {
    const tall = Math.min(1, worked[column]) * LANE.height;
    const more = Math.min(1 - Math.min(1, worked[column]), switched[column]) * LANE.height;
    context.fillStyle = colours.merged;
    if (tall > 0.5) context.fillRect(left + column, bottom - tall, 1, tall);
    context.fillStyle = colours.switched;
    if (more > 0.5) context.fillRect(left + column, bottom - tall - more, 1, more);
  }
  drawLaneNames(frame, lane, place, top, stay ? share(busy, stay) : "");
}

function addNarrow(columns, from, to) {
  const column = Math.floor(from);
  const next = Math.min(to, column + 1);
  columns[column] += next - from;
  for (let more = column + 1; more < Math.min(to, columns.length); more++) columns[more] += Math.min(to, more + 1) - more;
}

function drawSpan(frame, lane, i, top, x, wide) {
  const { view, context, colours, textures } = frame;
  const { jobs, kinds } = view.timeline;
  const kind = kinds[lane.kind[i]];
  const pattern = textures.get(kind);
  const edge = wide > 4 ? 1 : 0;
  context.globalAlpha = !view.highlighted || view.highlighted === lane.job[i] + 1 ? 1 : 0.2;
  context.fillStyle = colours.jobs[view.group.jobs.get(lane.job[i]) % JOB_COLOURS];
  context.fillRect(x, top, wide - edge, LANE.height);
  if (pattern) {
    context.fillStyle = pattern;
    context.globalAlpha *= 0.55;
    context.fillRect(x, top, wide - edge, LANE.height);
    context.globalAlpha /= 0.55;
  }
  if (kind !== "switch" && wide > 30) {
    context.fillStyle = colours.jobInk;
    context.font = "12px system-ui, sans-serif";
    context.textAlign = "left";
    const label = fitted(context, jobs[lane.job[i]], `#${lane.iteration[i]}`, wide - 9);
    if (pattern && label) plate(context, label, x + 4, top, colours.jobs[view.group.jobs.get(lane.job[i]) % JOB_COLOURS], colours.jobInk);
    else context.fillText(label, x + 4, top + LANE.height / 2 + 4);
  }
  context.globalAlpha = 1;
  if (view.chosen && view.chosen.lane === lane && view.chosen.i === i) {
    context.strokeStyle = colours.ink;
    context.lineWidth = 2;
    context.strokeRect(x + 1, top + 1, Math.max(2, wide - edge - 2), LANE.height - 2);
  }
}

// A label over a texture stands on a plain ground.
function plate(context, label, x, top, ground, ink) {
  context.fillStyle = ground;
  context.fillRect(x - 1, top + 5, context.measureText(label).width + 2, LANE.height - 10);
  context.fillStyle = ink;
  context.fillText(label, x, top + LANE.height / 2 + 4);
}

// The longest of: name and iteration, name, the end of the name. The end, since names often differ there only.
function fitted(context, name, extra, wide) {
  for (const text of [`${name} ${extra}`, name]) if (context.measureText(text).width <= wide) return text;
  let rest = name;
  while (rest && context.measureText(`…${rest}`).width > wide) rest = rest.slice(1);
  return rest.length > 1 ? `…${rest}` : "";
}

// `busy` is the part of the node's stay in the window, from its first span in the group to its last.
function drawLaneNames(frame, lane, place, top, busy) {
  const { view, context, colours, left, inner, width } = frame;
  const middle = top + LANE.height / 2 + 4;
  context.fillStyle = colours.paper;
  context.fillRect(0, top, left, LANE.height);
  context.fillRect(left + inner, top, width - left - inner, LANE.height);
  const current = view.lane === place;
  context.fillStyle = busy ? colours.ink : colours.muted;
  context.font = `${current ? "bold " : ""}12px system-ui, sans-serif`;
  context.textAlign = "left";
  context.fillText(fitted(context, lane.node, "", left - 22), 14, middle);
  if (current) context.fillText("▸", 2, middle);
  context.font = "12px system-ui, sans-serif";
  context.textAlign = "right";
  context.fillText(busy, width - 2, middle);
}
