// Where the node-hours of each pool went: a bar per run and pool, and the same as a table.
const PARTS = [["busy", "busy in phases"], ["switch", "switching"], ["idle", "idle: the bubbles"]];

function showBubbles(host, runs) {
  const rows = runs.flatMap((run) => POOLS.map((pool) => ({ run: run.name, pool, hours: run.pools[pool] })));
  const most = Math.max(0, ...rows.map((row) => row.hours.paid ?? 0));
  if (!most) return host.append(plain("No node was paid for, so there are no bubbles to show."));
  const key = make("ul", { class: "key", "aria-label": "Parts of a bar" },
    ...PARTS.map(([part, text]) => make("li", {}, make("span", { class: `swatch ${part}`, "aria-hidden": "true" }), text)));
  const bars = rows.map((row) => make("div", { class: "bar-row" },
    make("span", { class: "bar-name" }, `${row.run} · ${row.pool}`), bar(row.hours, most)));
  host.append(make("figure", { class: "chart" }, make("figcaption", {}, "Node-hours paid, by what the nodes did; longer bars cost more node-hours"),
    key, make("div", { class: "bars", "aria-hidden": "true" }, ...bars)), hoursTable(rows));
}

function bar(hours, most) {
  const element = make("span", { class: "bar" });
  for (const [part] of PARTS) {
    const piece = make("span", { class: `piece ${part}`, title: `${part}: ${nodeHours(hours[part] ?? 0)} node-hours, ${share(hours[part], hours.paid)}` });
    const long = (hours[part] ?? 0) / most;
    piece.style.width = `${100 * long}%`;
    piece.append(make("span", { class: "piece-label" }, `${part} ${share(hours[part], hours.paid)}`));
    element.append(piece);
  }
  return element;
}

function nodeHours(value) {
  return fixed(value, value < 1 ? 4 : 1);
}

function hoursTable(rows) {
  const head = ["Policy", "Pool", "Paid", ...PARTS.flatMap(([part]) => [part[0].toUpperCase() + part.slice(1), "%"])];
  const body = rows.map(({ run, pool, hours }) => make("tr", {}, make("th", { scope: "row" }, run), make("td", {}, pool),
    make("td", { class: "number" }, nodeHours(hours.paid)),
    ...PARTS.flatMap(([part]) => [make("td", { class: "number" }, nodeHours(hours[part])),
      make("td", { class: "number" }, share(hours[part], hours.paid))])));
  const caption = "Node-hours paid per policy and pool, and where they went";
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    make("table", { id: "bubble-table" }, captioned(caption),
      make("thead", {}, make("tr", {}, ...head.map((text, place) => make("th", { scope: "col", class: place > 1 ? "number" : null,
        "aria-label": text === "%" ? `${head[place - 1]}, percent of paid` : null }, text)))),
      make("tbody", {}, ...body)));
}
