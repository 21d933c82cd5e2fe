// Prices, the nodes' time, and the jobs.
const MOST_JOBS = 200;
const MOST_ENDED = 100;
const USES = [["busy", "At work"], ["switch", "Moving state"], ["lost", "Held by the lost"], ["idle", "Idle, with jobs"], ["free", "Free"]];

function bar(part, whole, kind) {
  const fill = make("span", { class: `fill ${kind}` });
  fill.style.width = `${clamp(whole > 0 ? 100 * part / whole : 0, 0, 100)}%`;
  return make("span", { class: "bar", "aria-hidden": "true" }, fill);
}

function drawCost() {
  const view = store.cluster, bill = store.bill;
  const rows = [["Together", view.usd_per_hour, "now"], ["Each alone", view.usd_per_hour_alone, "alone"], ["Fluid limit", view.usd_per_hour_fluid, "fluid"]];
  const most = Math.max(...rows.map((row) => row[1]));
  const lines = rows.map(([name, value, kind]) =>
    make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: "wide" }, bar(value, most, kind)), make("td", { class: "number" }, usd(value))));
  const alone = view.usd_per_hour_alone, fluid = view.usd_per_hour_fluid, paid = view.usd_per_hour;
  const words = view.nodes.every((node) => node.group === "") ? "No job is pinned to a node." : alone === 0 ? "These machines cost nothing." : `${grouped(100 * (1 - paid / alone), 1)} % less an hour than alone, ${grouped(paid / fluid, 2)}× the fluid limit: the same work at the same pace on nodes that are never idle.`;
  const spent = bill ? bill.jobs.reduce((sum, job) => sum + job.usd, bill.others_usd) : 0;
  const other = bill ? bill.jobs.reduce((sum, job) => sum + job.alone_usd, bill.others_alone_usd) : 0;
  const whole = bill && bill.jobs.length ? `The jobs below have cost ${usd(spent)} so far, and would have cost ${usd(other)} alone.` : "";
  show(byId("cost").querySelector(".body"), make("table", { class: "bars" }, make("caption", { class: "unseen" }, "Dollars per hour"), make("tbody", {}, ...lines)),
    make("p", { class: "note" }, `${words} ${whole}`));
}

function drawBubbles() {
  const names = store.pools.map((pool) => pool.pool);
  const rows = store.pools.map((pool) => {
    const whole = USES.reduce((sum, [use]) => sum + pool[`${use}_s`], 0);
    const pieces = USES.map(([use]) => {
      const piece = make("span", { class: `piece use-${use}` });
      piece.style.flexGrow = whole > 0 ? pool[`${use}_s`] / whole : 0;
      return piece;
    });
    const cells = USES.map(([use, name]) => make("td", { class: "number" }, make("span", { class: "cell-only" }, make("span", { class: `swatch use-${use}`, "aria-hidden": "true" }), name), percent(pool[`${use}_s`], whole)));
    return [make("tr", { class: "stacked" }, make("th", { scope: "row" }, pool.pool, make("span", { class: "note" }, counted(pool.nodes, "node", "nodes"))), ...cells),
      make("tr", { class: "strip", "aria-hidden": "true" }, make("td", { colspan: USES.length + 1 }, make("span", { class: "pieces" }, ...pieces)))];
  });
  const heads = USES.map(([use, name]) => make("th", { scope: "col", class: "number" }, make("span", { class: `swatch use-${use}`, "aria-hidden": "true" }), name));
  const since = store.bill ? lasting(Math.max(0, now() - store.bill.since_s)) : "";
  const table = make("table", { class: "uses" }, make("caption", { class: "unseen" }, `Node time by pool: ${names.join(", ")}`),
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Pool"), ...heads)), make("tbody", {}, ...rows.flat()));
  show(byId("bubbles").querySelector(".body"), make("div", { class: "scroll" }, table),
    make("p", { class: "note" }, store.pools.length ? `In the ${since} since the books were begun; idle nodes with jobs are the bubbles.` : "No nodes yet."));
}

function chip(job) {
  const look = lookOf(job);
  return make("span", { class: `chip ${look ? `job-${look.colour} form-${look.form}` : "other"}`, "aria-hidden": "true" });
}

// What a job does at this moment, in words: phases that it holds, then those that it waits for.
function doing(job) {
  const words = [];
  for (const lane of job.lanes) {
    const name = lane.iteration >= 0 ? `${lane.kind} ${lane.iteration}` : lane.kind;
    const wait = lane.state === "waiting" || lane.state === "offloading" ? store.waits.find((each) => each.job === job.job && each.kind === lane.kind) : undefined;
    if (wait) {
      const until = wait.expected_s === null ? "" : `, about ${lasting(wait.expected_s)} more`;
      words.push(["waits", `${name} waits ${lasting(Math.max(0, now() - wait.since_s))}: ${wait.reason.replace(/^waits for/, "for")}${until}`]);
    } else if (lane.state === "parked") words.push(["rests", `${lane.kind} state rests on its nodes`]);
    else if (lane.state !== "waiting") words.push([lane.state === "fenced" ? "lost" : "works", `${name} ${STATES[lane.state] ?? lane.state}${lane.for_s === null ? "" : ` for ${lasting(lane.for_s)}`}`]);
  }
  if (!words.length && (job.reason || job.state !== "running")) {
    const until = job.expected_wait_s === null ? "" : `, about ${lasting(job.expected_wait_s)} more`;
    words.push(["waits", `${job.reason || JOB_STATES[job.state] || job.state}${until}`]);
  }
  if (!words.length) words.push(["rests", "between phases"]);
  return words;
}

const STATES = { granted: "is moved in", running: "runs", pausing: "is to pause", shrinking: "moves its tail together", tail: "runs its tail", offloading: "is moved out", fenced: "has lost its lease" };
const JOB_STATES = { queued: "waits for a place", provisioning: "waits for its nodes", starting: "starts", stopping: "is being stopped" };
const MARKS = { works: "▶", waits: "◌", rests: "‖", lost: "✕" };

// What has been done since the last sync counts as work already, but not yet as time taken: less than 1 means 1.
function slowdownOf(job) {
  return job.slowdown === null || !(job.synced ?? job.iterations_done) ? null : Math.max(1, job.slowdown);
}

function headroom(job) {
  const slowdown = slowdownOf(job);
  const cell = { class: "number room", "data-name": "SLO" };
  if (slowdown === null) return make("td", cell, make("span", {}, `– of ${grouped(job.slo, 2)}×`), make("span", { class: "note" }, "no iteration yet"));
  const used = slowdown / job.slo; // as in `rollmux top` and in the figures for Prometheus
  const kind = used > 1.001 ? "over" : slowdown - 1 > 0.8 * (job.slo - 1) ? "near" : "calm";
  const left = `${grouped(100 * Math.max(0, 1 - used), 0)} % left`;
  const said = { over: "✕ over", near: `! ${left}`, calm: left }[kind];
  return make("td", { ...cell, class: `number room ${kind}` }, make("span", {}, `${grouped(slowdown, 2)}× of ${grouped(job.slo, 2)}×`), make("span", { class: "gauge" }, bar(used, 1, kind), make("strong", {}, said)));
}

function tightest(one, other) {
  const used = (job) => (slowdownOf(job) ?? 0) / job.slo;
  return used(other) - used(one) || natural(one.job, other.job);
}

function drawJobs() {
  const bills = store.bills;
  const live = store.cluster.jobs.filter((job) => job.state !== "ended").sort(tightest);
  const over = [...bills.values()].filter((bill) => bill.state === "ended").sort((one, other) => other.ended_s - one.ended_s);
  const host = byId("jobs").querySelector(".body");
  const rows = live.slice(0, MOST_JOBS).map((job) => liveRow(job, bills.get(job.job)));
  const heads = ["Job", "Doing now", "Iterations", "Pace", "SLO", "Cost", "Alone"];
  const numbers = new Set(["Iterations", "Pace", "SLO", "Cost", "Alone"]);
  const table = make("table", { id: "job-table" }, make("caption", { class: "unseen" }, "Jobs, the nearest to its SLO first"),
    make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col", class: numbers.has(head) ? "number" : null }, head)))), make("tbody", {}, ...rows));
  const parts = [live.length ? make("div", { class: "scroll" }, table) : make("p", { class: "note" }, "No job runs or waits. rollmux submit, or a script that attaches itself, brings one.")];
  if (live.length > MOST_JOBS) parts.push(make("p", { class: "note" }, `${MOST_JOBS} of ${live.length} jobs, the nearest to their SLOs; rollmux status shows all.`));
  if (over.length) parts.push(make("details", {}, make("summary", {}, counted(store.bill.ended, "job has ended", "jobs have ended")), endedTable(over)));
  show(host, ...parts);
}

function liveRow(job, bill) {
  const words = doing(job).map(([kind, text]) => make("div", { class: `doing ${kind}` }, make("span", { "aria-hidden": "true" }, MARKS[kind]), make("span", {}, text)));
  const place = [job.group, job.attempt > 1 ? `attempt ${job.attempt}` : ""].filter(Boolean).join(" · ");
  const done = job.iterations === null ? `${job.synced}` : `${job.synced} / ${job.iterations}`;
  const pace = job.recent_s ?? null;
  return make("tr", {},
    make("th", { scope: "row" }, make("span", { class: "named" }, chip(job.job), make("span", { class: "name" }, job.job)), make("span", { class: "note" }, place || JOB_STATES[job.state] || job.state)),
    make("td", { class: "doings" }, ...words),
    make("td", { class: "number", "data-name": "Iterations" }, make("span", {}, done), job.iterations ? bar(job.synced, job.iterations, "done") : null),
    make("td", { class: "number", "data-name": "Pace" }, make("span", {}, pace === null ? "–" : lasting(pace)), make("span", { class: "note" }, `alone ${lasting(job.solo_s)}`)),
    headroom(job),
    make("td", { class: "number", "data-name": "Cost" }, make("span", {}, bill ? usd(bill.usd) : "–"), make("span", { class: "note" }, bill ? `${usd(bill.usd_per_hour)}/h` : "")),
    make("td", { class: "number", "data-name": "Alone" }, make("span", {}, bill ? usd(bill.alone_usd) : "–"), make("span", { class: "note" }, `${usd(job.usd_per_hour_alone)}/h`)));
}

function endedTable(bills) {
  const rows = bills.map((bill) => make("tr", {}, make("th", { scope: "row" }, bill.job), make("td", {}, bill.how), make("td", { class: "number" }, `${lasting(Math.max(0, now() - bill.ended_s))} ago`),
    make("td", { class: "number" }, `${bill.iterations_done}`), make("td", { class: "number" }, slowdownOf(bill) === null ? "–" : `${grouped(slowdownOf(bill), 2)}× of ${grouped(bill.slo, 2)}×${bill.slowdown > bill.slo * 1.001 ? " ✕" : ""}`),
    make("td", { class: "number" }, usd(bill.usd)), make("td", { class: "number" }, usd(bill.alone_usd))));
  const heads = ["Job", "How", "When", "Iterations", "Slowdown of SLO", "Cost", "Alone"].map((head, place) => make("th", { scope: "col", class: place > 1 ? "number" : null }, head));
  return make("div", { class: "scroll" }, make("table", {}, make("caption", { class: "unseen" }, "Jobs that have ended, the latest first"), make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows)));
}
