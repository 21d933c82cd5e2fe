// A table of many rows: sorted by its header buttons, filtered by a test, shown a page at a time.
const PAGE_ROWS = 100;

// columns: {key, label, numeric, value(row) to sort by, cell(row) to show}
function sortedTable({ id, caption, columns, rows, sortBy, descending = false, what }) {
  const state = { key: sortBy, descending, shown: PAGE_ROWS, keep: () => true };
  const body = make("tbody");
  const count = make("p", { class: "count", role: "status" });
  const more = make("button", { type: "button", click: () => {
    state.shown += PAGE_ROWS;
    fill();
  } });
  const heads = columns.map((column) => make("th", { scope: "col", class: column.numeric ? "number" : null },
    make("button", { type: "button", class: "sort", click: () => sortOn(column) },
      column.label, make("span", { class: "arrow", "aria-hidden": "true" }))));

  function sortOn(column) {
    state.descending = state.key === column.key ? !state.descending : false;
    state.key = column.key;
    fill();
  }

  function fill() {
    const column = columns.find(({ key }) => key === state.key);
    const kept = rows.filter(state.keep);
    const found = kept.map((row) => [column.value(row), row]).sort(([a], [b]) => compare(a, b, state.descending));
    const page = found.slice(0, state.shown);
    body.replaceChildren(...page.map(([, row]) => tableRow(columns, row)));
    heads.forEach((head, place) => {
      const sorted = columns[place].key === state.key;
      head.setAttribute("aria-sort", sorted ? (state.descending ? "descending" : "ascending") : "none");
      head.querySelector(".arrow").textContent = sorted ? (state.descending ? " ▼" : " ▲") : "";
    });
    count.textContent = kept.length
      ? `Showing ${grouped(page.length, 0)} of ${grouped(kept.length, 0)} ${what}.`
      : `No ${what} match the filter.`;
    more.hidden = page.length === kept.length;
    more.textContent = `Show ${Math.min(PAGE_ROWS, kept.length - page.length)} more`;
  }

  const element = make("div", {}, count,
    make("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": caption },
      make("table", { id }, captioned(caption), make("thead", {}, make("tr", {}, ...heads)), body)),
    more);
  fill();
  return { element, filter(keep) {
    state.keep = keep;
    state.shown = PAGE_ROWS;
    fill();
  } };
}

// The column of jobs' names, each of which leads to its job in the timeline, where there is one.
function jobColumn(goTo) {
  return { key: "job", label: "Job", value: (row) => row.job, cell: (row) => row.hasSpans
    ? make("button", { type: "button", class: "link job-name", title: "Show in the timeline", click: () => goTo(row.place, row.group, row.job) }, row.job)
    : make("span", { class: "job-name" }, row.job) };
}

// Missing values stand last, whichever way the rest is sorted.
function compare(a, b, descending) {
  if (a === null || b === null) return (a === null) - (b === null);
  const order = typeof a === "number" ? a - b : natural(a, b);
  return descending ? -order : order;
}

function tableRow(columns, row) {
  return make("tr", {}, ...columns.map((column, place) => make(place ? "td" : "th",
    { scope: place ? null : "row", class: column.numeric ? "number" : null }, column.cell(row))));
}
