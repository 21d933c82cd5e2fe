// Brings it all together: who reads, what is fetched when, what is drawn when.
const CALM = matchMedia("(prefers-reduced-motion: reduce)");
const DRAW_MS = 250;
const CALM_MS = 2000;
const PANELS_MS = 1000;
const LOOK_MS = 2000; // how often the whole is looked at anew, where nothing says that it must be at once
const LOOK_PER_JOB_MS = 5; // a look at many jobs is work for the controller
const LATE_S = 6;
const MOST_PAUSE_MS = 3000; // between two attempts to come back

let wanted = false; // something happened that only the views tell
let life = 0; // counts the times that somebody came in: what belongs to an earlier one ends

function draw() {
  if (store.cluster === null) return;
  giveLooks();
  sumUp();
  store.bills = new Map((store.bill?.jobs ?? []).map((bill) => [bill.job, bill]));
  drawLanes();
  drawAll();
  drawCost();
  drawBubbles();
  drawJobs();
  drawTable();
}

function sumUp() {
  const { jobs, nodes } = store.cluster;
  const running = jobs.filter((job) => job.state === "running").length;
  const others = jobs.filter((job) => !["running", "ended"].includes(job.state)).length;
  setText(byId("sum"), `${counted(running, "job runs", "jobs run")}${others ? `, ${counted(others, "is", "are")} to run` : ""} · ${counted(nodes.length, "node", "nodes")}`);
}

function drawAll() {
  const uses = usesByNode();
  for (const lane of view.lanes.values()) drawCanvas(lane, uses);
}

function tellLink() {
  if (store.cluster === null) return;
  const silent = seconds() - store.heard;
  const late = silent > LATE_S && !streaming ? silent : silent > SILENT_S ? silent : 0;
  const stale = byId("stale");
  document.body.classList.toggle("late", late > 0);
  if (late && store.frozen === null) store.frozen = now() - silent;
  if (!late) store.frozen = null;
  setText(byId("link-text"), late ? "No word from the controller" : streaming ? "Live" : trouble ? `Not live: ${trouble}` : "Reconnecting …");
  byId("link").dataset.state = late ? "late" : streaming ? "live" : "trying";
  stale.hidden = !late && !store.cluster.broken;
  if (late) setText(stale, `Nothing has been heard of the controller since ${new Date(store.heardAt).toLocaleString()}. What is shown is of then; jobs go on, and so does this page once it is back.`);
  else if (store.cluster.broken) setText(stale, `The controller can change nothing: ${store.cluster.broken}`);
}

let streaming = false;
let trouble = ""; // why the controller gives no stream, in its words

async function lookAnew(mine) {
  const [cluster, bill, rest] = await Promise.all([get("v1/cluster?ended=0"), get(`v1/bill?ended=${MOST_ENDED}`), get("v1/history?since_s=1&most=1")]);
  if (life !== mine) return;
  store.cluster = cluster;
  store.bill = bill;
  takeRest(rest);
}

async function keepLooking(mine) {
  let last = 0;
  while (life === mine) {
    await pause(300);
    forgetOld(); // here, as a tab that nobody looks at draws nothing
    const gap = LOOK_MS + LOOK_PER_JOB_MS * (store.cluster?.jobs.length ?? 0);
    if (document.hidden || !streaming || performance.now() - last < (wanted ? gap / 3 : gap)) continue;
    last = performance.now();
    wanted = false;
    await lookAnew(mine).catch(() => {});
  }
}

// Once in: everything, then what changes, for ever. Whatever fails is tried again, each time a little later.
async function live(mine) {
  let failures = 0;
  while (life === mine) {
    const gone = new AbortController();
    let watch;
    try {
      const past = await get("v1/history?since_s=3600");
      if (life !== mine) return;
      takeHistory(past);
      await lookAnew(mine);
      if (life !== mine) return;
      openUp();
      store.spoke = seconds();
      watch = setInterval(() => { if (seconds() - store.spoke > SILENT_S || life !== mine) gone.abort(); }, 1000);
      await follow(store.seq, gone.signal, () => {
        if (life !== mine) return;
        failures = 0;
        trouble = "";
        streaming = true;
      }, (kind, data) => {
        if (life !== mine || (kind === "reset" && data.seq !== store.seq)) gone.abort();
        else if (kind === "message" && takeNews(data)) wanted = true;
      });
    } catch (error) {
      if (life === mine && error instanceof Refused && [401, 403].includes(error.status)) return turnAway(error);
      if (life === mine) trouble = error instanceof Refused ? error.message : "";
    } finally {
      clearInterval(watch);
      if (life === mine) streaming = false;
    }
    tellLink();
    failures += 1;
    await pause(Math.min(MOST_PAUSE_MS, 200 * 2 ** failures) * (0.5 + Math.random() / 2));
  }
}

function openUp() {
  byId("door").hidden = true;
  byId("cluster").hidden = byId("tools").hidden = false;
  tellLink();
  draw();
}

function turnAway(error) {
  sessionStorage.removeItem(KEPT);
  askAgain(error.status === 401 ? "The controller knows no such token: it may have been revoked, or be of another controller." : "This token speaks for one job alone. The page is for tenants and admins.");
}

function askAgain(why) {
  life += 1;
  streaming = false;
  trouble = "";
  store.cluster = store.bill = store.frozen = null;
  store.spans = new Map();
  looks.clear();
  pick(null);
  for (const told of document.querySelectorAll("#lanes, #cluster .body, #spans .scroll")) told.replaceChildren();
  view.lanes.clear();
  byId("cluster").hidden = byId("tools").hidden = byId("stale").hidden = true;
  byId("door").hidden = false;
  setText(byId("refused"), why);
  setText(byId("link-text"), "Not connected");
  byId("link").dataset.state = "";
  setText(byId("sum"), "");
  document.body.classList.remove("late");
  byId("token").value = "";
  byId("token").focus();
}

function comeIn() {
  if (/[^!-~]/.test(token())) return turnAway(new Refused(401, "no call can carry it"));
  life += 1;
  hear();
  setText(byId("refused"), "");
  setText(byId("link-text"), "Connecting …");
  live(life);
  keepLooking(life);
}

function drawKey() {
  const rows = [["number", "iteration"], ["load", "state is moved in"], ["work", "at work"], ["paused", "paused"], ["offload", "state is moved out"], ["failed", "failed, or lost"]];
  show(byId("key"), ...rows.map(([kind, text]) => make("li", {}, make("span", { class: `sample ${kind}`, "aria-hidden": "true" }, kind === "number" ? "12" : ""), text)));
}

function begin() {
  drawKey();
  readPens();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readPens(); draw(); });
  byId("windows").addEventListener("change", (event) => { view.windowS = Number(event.target.value); pick(null); draw(); });
  byId("spans").addEventListener("toggle", drawTable);
  byId("leave").addEventListener("click", () => { sessionStorage.removeItem(KEPT); askAgain(""); });
  byId("door").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(KEPT, byId("token").value.trim());
    comeIn();
  });
  addEventListener("hashchange", () => { if (takeTokenFromAddress()) { askAgain(""); comeIn(); } });
  let drawn = 0, told = 0;
  const beat = (at) => {
    if (store.cluster !== null && !document.hidden) {
      if (at - told > PANELS_MS) { told = at; tellLink(); draw(); drawn = at; }
      else if (at - drawn > (CALM.matches ? CALM_MS : DRAW_MS)) { drawn = at; drawAll(); }
    }
    requestAnimationFrame(beat);
  };
  requestAnimationFrame(beat);
  takeTokenFromAddress();
  if (token()) comeIn();
  else askAgain("");
}

begin();
