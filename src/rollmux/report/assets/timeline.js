// The spans of a run, read when first looked at and unpacked a group at a time.
const READ = new Map();

function timelineOf(place) {
  if (!READ.has(place)) READ.set(place, readJson(`timeline-${place}`));
  return READ.get(place);
}

// A lane's columns; `reach` is the latest end so far, so that a window's first span is found though spans may overlap.
function unpackLane(packed) {
  const size = packed.gap.length;
  const lane = { node: packed.node, size, job: packed.job, kind: packed.kind, start: new Float64Array(size), end: new Float64Array(size),
    reach: new Float64Array(size), iteration: new Int32Array(size) };
  const iterations = new Map();
  let last = 0;
  let reach = -Infinity;
  for (let i = 0; i < size; i++) {
    lane.start[i] = last + packed.gap[i];
    lane.end[i] = last = lane.start[i] + packed.long[i];
    lane.reach[i] = reach = Math.max(reach, last);
    lane.iteration[i] = (iterations.get(packed.job[i]) ?? 0) + packed.step[i];
    iterations.set(packed.job[i], lane.iteration[i]);
  }
  return lane;
}

function groupOf(place, name) {
  const packed = timelineOf(place).groups.find((group) => group.name === name);
  const lanes = packed.lanes.map(unpackLane);
  const jobs = new Map(); // place among all jobs: place in the order in which they came to this group
  const came = new Map();
  for (const lane of lanes) lane.job.forEach((job, i) => came.set(job, Math.min(came.get(job) ?? Infinity, lane.start[i])));
  for (const [job] of [...came].sort((a, b) => a[1] - b[1])) jobs.set(job, jobs.size);
  return { name, lanes, jobs, first: Math.min(...lanes.map((lane) => lane.start[0])), last: Math.max(...lanes.map((lane) => lane.reach[lane.size - 1])) };
}

// The spans of a lane that touch a window: from, and up to but without.
function within(lane, from, to) {
  return [countUpTo(lane.reach, from), countUpTo(lane.start, to)];
}

// The earliest time at which most nodes of the group were at work.
function fullest(group) {
  const alive = (at) => group.lanes.filter((lane) => lane.start[0] <= at && at <= lane.reach[lane.size - 1]).length;
  const starts = group.lanes.map((lane) => lane.start[0]).sort((a, b) => a - b);
  return starts.reduce((best, at) => alive(at) > alive(best) ? at : best, group.first);
}

// The window to begin with: from the group's start, unless the group is fuller later than that shows.
function firstWindow(group) {
  const window = readableWindow(group, group.first);
  const full = fullest(group);
  return full <= window[1] ? window : readableWindow(group, full);
}

// A window from this time on in which the busiest lane can be read span by span.
function readableWindow(group, from) {
  const about = 40;
  let until = group.last;
  for (const lane of group.lanes) {
    const place = countUpTo(lane.start, from) + about;
    if (place < lane.size) until = Math.min(until, lane.end[place]);
  }
  return [from, Math.max(until, from + SHORTEST_MS)];
}

function spanText(timeline, lane, i) {
  return `${lane.node}: ${timeline.jobs[lane.job[i]]}, ${timeline.kinds[lane.kind[i]]}, iteration ${grouped(lane.iteration[i], 0)}, ` +
    `${clock(lane.start[i])} to ${clock(lane.end[i])} (${lasting(lane.end[i] - lane.start[i])})`;
}
