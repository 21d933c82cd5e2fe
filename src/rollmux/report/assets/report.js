// The page: reads the facts and fills each section.
function start() {
  const { runs } = readJson("facts");
  for (const run of runs) {
    run.at = sums(run.levels.at_ms);
    run.end = (run.makespan_h ?? 0) * 3600000;
  }
  const body = (name) => byId(`${name}-body`);
  const show = showGantt(body("timeline"), runs);
  showCost(body("cost"), runs);
  showNodes(body("nodes"), runs);
  showBubbles(body("bubbles"), runs);
  showJobs(body("slo"), runs, show);
  showAdmissions(body("admissions"), runs, show);
}

start();
