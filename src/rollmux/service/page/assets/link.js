// The line to the controller: the token, calls, the stream, and what is done when it is gone.
const KEPT = "rollmux-token";
const SILENT_S = 16; // a live stream says something every ten seconds
const TOO_MANY = 429;
const AGAIN_MS = 1000; // who calls too often is told to wait so long

class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

function hear() {
  store.heard = seconds();
  store.heardAt = Date.now();
}

function token() {
  return sessionStorage.getItem(KEPT) ?? "";
}

// A token after #token= is taken, and is to be seen in no address and no history from then on.
function takeTokenFromAddress() {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (found === null) return false;
  sessionStorage.setItem(KEPT, found);
  history.replaceState(null, "", location.pathname);
  return true;
}

async function call(path, options = {}) {
  const answer = await fetch(path, { headers: { Authorization: `Bearer ${token()}` }, cache: "no-store", credentials: "omit", ...options });
  if (!answer.ok) {
    const refusal = await answer.json().catch(() => ({}));
    throw new Refused(answer.status, refusal.error ?? `The controller answered ${answer.status}.`);
  }
  return answer;
}

// What the controller says there, as soon as it may be asked: looks at many jobs use up the calls of seconds.
async function get(path) {
  for (;;) {
    try {
      const answer = await call(path, { signal: AbortSignal.timeout(15000) });
      const found = await answer.json();
      hear();
      return found;
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== TOO_MANY) throw error;
    }
    hear(); // that is a word, too
    await pause(AGAIN_MS);
  }
}

// Reads the stream until it ends; each event is given on, comments only count as a sign of life.
async function follow(after, signal, opened, heard) {
  const answer = await call(`v1/events?after=${after}`, { signal });
  opened();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    hear();
    store.spoke = store.heard;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const lines = part.split("\n");
      const of = (name) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
      const data = of("data");
      if (data !== undefined) heard(of("event") ?? "message", JSON.parse(data));
    }
  }
}

function pause(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
