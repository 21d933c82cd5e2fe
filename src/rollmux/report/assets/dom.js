// Shapes, formats, and what every chart shares.
const SERIES_LOOKS = 8;
const POOLS = ["rollout", "training"];

function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function readJson(id) {
  return JSON.parse(byId(id).textContent);
}

function sums(steps) {
  const found = new Float64Array(steps.length);
  let last = 0;
  for (let i = 0; i < steps.length; i++) found[i] = last += steps[i];
  return found;
}

// How many values of a growing list are at most this one.
function countUpTo(values, limit) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= limit) low = middle + 1;
    else high = middle;
  }
  return low;
}

function fixed(value, digits) {
  return value === null || value === undefined ? "–" : grouped(value, digits);
}

function usd(value) {
  return value === null ? "–" : `${value < 0 ? "−" : ""}$${grouped(Math.abs(value), 2)}`;
}

function share(part, whole) {
  return whole > 0 ? `${(100 * part / whole).toFixed(1)} %` : "–";
}

// 93784000 is 26:03:04; hours go on beyond a day.
function clock(ms, withSeconds = true) {
  const seconds = Math.round(ms / 1000);
  const two = (value) => String(value).padStart(2, "0");
  const minutes = `${Math.floor(seconds / 3600)}:${two(Math.floor(seconds / 60) % 60)}`;
  return withSeconds ? `${minutes}:${two(seconds % 60)}` : minutes;
}

function lasting(ms) {
  const seconds = ms / 1000;
  if (seconds < 120) return `${grouped(seconds, 1)} s`;
  return seconds < 7200 ? `${grouped(seconds / 60, 1)} min` : `${grouped(seconds / 3600, 1)} h`;
}

// Round numbers from 0 to at least `most`, or to 1 where that is nothing.
function ticksTo(most, about) {
  const top = most > 0 ? most : 1;
  const raw = top / about;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= raw * 0.999) * power;
  const ticks = [];
  for (let i = 0; i === 0 || ticks[i - 1] < top - step * 1e-6; i++) ticks.push(Number((i * step).toPrecision(12)));
  return ticks;
}

// A tick in as many digits as it has: steps of 0.25 and of 0.002 are told apart.
function tickText(value) {
  return value.toLocaleString("en-US", { maximumSignificantDigits: 6 });
}

function look(place) {
  return `series-${place % SERIES_LOOKS}`;
}

// The mark of a run: as different in form as in colour.
function markPath(place, x, y, r) {
  const at = (...points) => `M${points.map(([dx, dy]) => `${(x + dx * r).toFixed(1)} ${(y + dy * r).toFixed(1)}`).join("L")}Z`;
  const forms = [
    () => `M${(x - r).toFixed(1)} ${y.toFixed(1)}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`,
    () => at([-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]),
    () => at([0, -1.1], [1.1, 0.9], [-1.1, 0.9]),
    () => at([0, -1.25], [1.25, 0], [0, 1.25], [-1.25, 0]),
    () => at([0, 1.1], [1.1, -0.9], [-1.1, -0.9]),
    () => at([-0.5, -1], [1, -1], [0.5, 1], [-1, 1]),
    () => at([-1.2, -0.5], [1.2, -0.5], [1.2, 0.5], [-1.2, 0.5]),
    () => at([-0.5, -1.2], [0.5, -1.2], [0.5, 1.2], [-0.5, 1.2]),
  ];
  return forms[place % forms.length]();
}

function sample(place, name) {
  return shape(
    "svg",
    { class: `sample ${look(place)}`, viewBox: "0 0 34 14", width: 34, height: 14, "aria-hidden": "true" },
    shape("path", { class: "line", d: "M1 7H33" }),
    shape("path", { class: "mark", d: markPath(place, 17, 7, 4) }),
    shape("title", {}, name),
  );
}

function option(value, text) {
  return make("option", { value }, text);
}

function labelled(text, control) {
  return make("label", { class: "field" }, make("span", {}, text), control);
}

// A caption that stays in sight while its table is scrolled sideways.
function captioned(text) {
  return make("caption", {}, make("span", { class: "caption" }, text));
}

function plain(text) {
  return make("p", { class: "empty" }, text);
}

// Draws now, and again whenever the room changes or the colours do, as on dark screens for paper.
function keepDrawn(host, draw) {
  let width = 0;
  new ResizeObserver(() => {
    if (host.clientWidth && host.clientWidth !== width) {
      width = host.clientWidth;
      draw(width);
    }
  }).observe(host);
  for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", () => width && draw(width));
  return () => width && draw(width);
}
