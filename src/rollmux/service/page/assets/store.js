// What is known of the cluster: the phases of the last hour, kept up to date by the news, and the latest views.
const HOUR_S = 3600;
const MOST_SPANS = 12000;

const store = {
  spans: new Map(),
  wholeFrom: 0,
  seq: 0,
  cluster: null,
  bill: null,
  bills: new Map(), // by job
  pools: [],
  waits: [],
  heard: 0, // when the controller last said anything, by this page's clock
  spoke: 0, // when its stream last did: that may be silent alone
  heardAt: 0, // the same by the wall's clock, which goes on while the machine sleeps
  origin: 0, // the controller's time, less this page's
  frozen: null, // its time when it was last heard, while nothing is heard of it
};

function seconds() {
  return performance.now() / 1000;
}

function now() {
  return store.frozen ?? store.origin + seconds();
}

// The controller's clock as of now. Answers take a moment: the latest reading that any of them gave is right.
function setClock(at) {
  const origin = at - seconds();
  if (store.origin === 0 || Math.abs(origin - store.origin) > 5 || origin > store.origin) store.origin = origin;
  else store.origin += (origin - store.origin) * 0.02;
}

function keyOf(epoch, kind) {
  return `${epoch} ${kind === "offload" ? kind : "phase"}`;
}

function takeHistory(view) {
  setClock(view.now);
  store.spans = new Map(view.spans.map((span) => [keyOf(span.epoch, span.kind), span]));
  store.wholeFrom = view.whole_from_s;
  store.seq = view.seq;
  takeRest(view);
}

function takeRest(view) {
  store.pools = view.pools;
  store.waits = view.waits;
}

function takeNews(news) {
  store.seq = news.seq;
  setClock(news.at);
  for (const change of news.changes) takeChange(change, news.at);
  return news.changes.some((change) => ["job", "node", "gone", "submitted"].includes(change.what));
}

function takeChange(change, at) {
  const key = keyOf(change.epoch, change.kind);
  const span = store.spans.get(key);
  const nodes = change.nodes ?? [];
  if (change.what === "granted" || change.what === "offloading") {
    const uses = nodes.map((node) => ({ node, began_s: at, ended_s: null }));
    store.spans.set(key, { epoch: change.epoch, job: change.job, group: change.group ?? "", kind: change.kind, iteration: change.iteration ?? -1, uses,
      waited_s: change.waited_s ?? 0, began_s: at, started_s: null, ended_s: null, load: change.load ?? false, resumed: change.resumed ?? false, how: "", fenced: false });
  } else if (span === undefined) {
    return;
  } else if (change.what === "started") {
    span.started_s = at;
  } else if (change.what === "fenced") {
    span.fenced = true;
  } else if (change.what === "nodes") {
    for (const use of span.uses) if (use.ended_s === null && !nodes.includes(use.node)) use.ended_s = at;
    const held = span.uses.filter((use) => use.ended_s === null).map((use) => use.node);
    for (const node of nodes) if (!held.includes(node)) span.uses.push({ node, began_s: at, ended_s: null });
  } else if (change.what === "ended") {
    span.ended_s = at;
    span.how = change.state;
    for (const use of span.uses) use.ended_s ??= at;
  }
}

// What is older than an hour, or more than a page can draw: in the order in which they were granted.
function forgetOld() {
  const first = now() - HOUR_S;
  for (const [key, span] of store.spans) {
    if (span.ended_s === null) continue;
    if (span.ended_s >= first && store.spans.size <= MOST_SPANS) break;
    store.spans.delete(key);
    store.wholeFrom = Math.max(store.wholeFrom, span.ended_s);
  }
}

// A colour for each job, another than those that share its group have; and a form for the ninth and those after it.
const looks = new Map();
const COLOURS = 8;

function lookOf(job) {
  return looks.get(job) ?? null;
}

function giveLooks() {
  const groups = new Map();
  for (const span of store.spans.values()) {
    if (!groups.has(span.group)) groups.set(span.group, new Set());
    groups.get(span.group).add(span.job);
  }
  for (const job of store.cluster?.jobs ?? []) {
    if (!groups.has(job.group)) groups.set(job.group, new Set());
    groups.get(job.group).add(job.job);
  }
  const shown = new Set([...groups.values()].flatMap((jobs) => [...jobs]));
  for (const job of looks.keys()) if (!shown.has(job)) looks.delete(job); // a page may be open for months
  for (const jobs of groups.values()) {
    const used = [...jobs].map(lookOf).filter((look) => look !== null);
    for (const job of [...jobs].sort(natural)) {
      if (looks.has(job)) continue;
      const free = [...Array(COLOURS).keys()].filter((colour) => !used.some((look) => look.colour === colour));
      const number = looks.size;
      const look = free.length ? { colour: free.includes(number % COLOURS) ? number % COLOURS : free[0], form: 0 } : { colour: number % COLOURS, form: 1 + number % 2 };
      looks.set(job, look);
      used.push(look);
    }
  }
}
