// What each admission did, and in words why.
function showAdmissions(host, runs, goTo) {
  const rows = runs.flatMap((run, place) => Array.from(sums(run.admissions.at_ms), (at, i) => ({
    place, run: run.name, at, hasSpans: run.has_spans, job: run.admissions.job[i], group: run.admissions.group[i],
    strategy: run.admissions.strategy[i], added: run.admissions.added_usd_per_hour[i], why: run.admissions.why[i],
  })));
  if (!rows.length) return host.append(plain("No admissions were recorded: they are kept only where history is asked for."));
  const table = sortedTable({ id: "admission-table", caption: "Every admission, with the reasons for it",
    columns: admissionColumns(goTo), rows, sortBy: "at", what: "admissions" });
  const search = make("input", { type: "search", id: "admission-search", input: apply });
  const policy = policyPick("admission-policy", runs, apply);
  const found = [...new Set(rows.map((row) => row.strategy))].sort();
  const strategy = make("select", { id: "admission-strategy", change: apply }, option("", "all"), ...found.map((name) => option(name, name)));
  function apply() {
    const words = search.value.trim().toLowerCase();
    table.filter((row) => (policy.value === "" || row.place === Number(policy.value)) && (strategy.value === "" || row.strategy === strategy.value)
      && (!words || [row.job, row.group, ...row.why].some((text) => text.toLowerCase().includes(words))));
  }
  host.append(make("div", { class: "controls" }, labelled("Search job, group, reasons", search), labelled("Policy", policy),
    labelled("Strategy", strategy)), table.element);
}

function admissionColumns(goTo) {
  const text = (key, label) => ({ key, label, value: (row) => row[key], cell: (row) => row[key] });
  return [
    jobColumn(goTo),
    { key: "at", label: "Time h", numeric: true, value: (row) => row.at, cell: (row) => grouped(row.at / 3600000, 2) },
    text("run", "Policy"),
    text("strategy", "Strategy"),
    text("group", "Group"),
    { key: "added", label: "Added USD/h", numeric: true, value: (row) => row.added, cell: (row) => row.added > 0 ? `+${usd(row.added)}` : usd(row.added) },
    { key: "why", label: "Why", value: (row) => row.why.length, cell: (row) => row.why.length
      ? make("details", {}, make("summary", {}, counted(row.why.length, "reason", "reasons"), make("span", { class: "unseen" }, ` for ${row.job}`)),
        make("ol", {}, ...row.why.map((line) => make("li", {}, line)))) : "–" },
  ];
}
