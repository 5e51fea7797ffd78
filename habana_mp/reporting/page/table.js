// The table of operations, and the details of one of them.

const TABLE_LINE = 24;
const TABLE_HEAD = 28;

/** Returns a column of words. `key` returns the sort key of a row, or null; `cell` returns the content. */
function words(name, width, key = (row) => row[name], cell = key) {
  return { name, title: name, width, key, cell, isNumber: false, hint: null };
}

/** Returns a column of the numbers in the field `name` of rows; `shown` formats a number. */
function numbers(name, title, width, shown = count, hint = null) {
  return { name, title, width, key: (row) => row[name], cell: (row) => shown(row[name]), isNumber: true, hint };
}

/** All columns. A column is hidden if no row has a key in it. */
const COLUMNS = [
  numbers("order", "#", 46, String, "order of the first call"),
  words("operation", 126),
  words("precision", 86, (row) => row.precision, precisionBadge),
  words("reason", 150, (row) => row.why, (row) => row.why.split(": ")[0]),
  words("phase", 72),
  words("module", 165, (row) => row.module, (row) => endOf(moduleAndPhase(row))),
  numbers("seconds", "ms", 66, milliseconds, "time in milliseconds"),
  numbers("calls", "calls", 52),
  numbers("casts", "casts", 54),
  numbers("bytes", "MB cast", 68, megabytes),
  numbers("cast_seconds", "cast ms", 62, milliseconds, "time of casts in milliseconds"),
  numbers("hits", "cached", 62, count, "how often a cached cast of a weight was used"),
  words("place", 122, placeOf, (row) => endOf(placeOf(row))),
];

/** A narrow window shows only the first columns, and one without room beside the modules leaves out the second: all are
 *  in the details of a chosen row. */
const ALWAYS_SHOWN = ["operation", "precision", "seconds", "calls"];
const IF_THERE_IS_ROOM = ["order", "phase", "bytes", "hits"];

/** The pixels of a digit, and of the space around a number. */
const DIGIT = 7.5;
const AROUND = 15;

/** Returns the module, with the phase where it is another one than forward. */
function moduleAndPhase({ module, phase }) {
  return phase === "forward" ? module : `${module ?? ""} (${phase})`.trim();
}

function placeOf({ file, line }) {
  return file === null ? null : `${fileName(file)}:${line}`;
}

function wholePlace({ file, line }) {
  return file === null ? null : `${file}:${line}`;
}

function precisionBadge({ precision, ran_in: ranIn }) {
  return element("span", { class: "badge" }, swatch(precision), ranIn ?? precision);
}

function showTable() {
  const view = byId("table-view");
  const table = byId("table");
  const columns = COLUMNS.filter(({ key }) => report.rows.some((row) => key(row) !== null)).map(withWidth);
  const headings = columns.map(heading);
  const width = sum(columns, (column) => column.width);
  const least = columns.filter(({ name }) => !IF_THERE_IS_ROOM.includes(name));
  const mostCost = greatest(report.rows, (row) => row.cost);
  const lines = makeWindow(view, table.tBodies[0], TABLE_LINE, TABLE_HEAD, (row, index) =>
    tableLine(columns, row, index, mostCost),
  );
  let rows = [];
  let drawn = null;

  for (const column of columns) {
    const made = element("col", { class: classOf(column) });
    made.style.width = `${(100 * column.width) / width}%`;
    table.querySelector("colgroup").append(made);
  }
  table.style.minWidth = `${sum(least, (column) => column.width)}px`;
  table.tHead.append(element("tr", {}, ...headings));
  if (report.rows.length === 0) byId("table-none").textContent = "No operation was seen.";

  function draw() {
    const filters = JSON.stringify({ ...state, row: null, printing: null });
    if (filters !== drawn) {
      rows = shownRows();
      view.scrollTop = 0;
    }
    drawn = filters;
    headings.forEach((one, index) => one.setAttribute("aria-sort", orderOf(columns[index])));
    byId("operations-count").textContent = countOfRows(rows);
    byId("table-none").hidden = rows.length > 0;
    byId("row-details").hidden = state.row === null;
    byId("row-details").replaceChildren(...(state.row === null ? [] : detailsOf(report.rows[state.row])));
    table.setAttribute("aria-rowcount", rows.length + 1);
    table.setAttribute("aria-activedescendant", `row-${state.row}`);
    lines.fill(rows);
  }

  function choose(index) {
    change({ row: rows[index].index });
    lines.show(index);
  }

  table.addEventListener("click", (event) => {
    const index = clickedIndex(event);
    if (index !== null && rows[index].index === state.row) change({ row: null });
    else if (index !== null) choose(index);
  });
  table.addEventListener("keydown", (event) => {
    if (event.target !== table) return; // a heading's button has keys of its own
    const to = lines.movedTo(event.key, rows.findIndex((row) => row.index === state.row));
    if (to !== null) {
      event.preventDefault();
      choose(to);
      byId(`row-${rows[to].index}`).scrollIntoView({ block: "nearest" }); // the table may be partly out of the window
    } else if (event.key === "Escape") change({ row: null });
  });
  views.push(draw);
}

/** Returns a column that is wide enough for its numbers. */
function withWidth(column) {
  const length = (row) => (column.key(row) === null ? 0 : column.cell(row).length);
  const needed = column.isNumber ? Math.ceil(AROUND + DIGIT * greatest(report.rows, length)) : 0;
  return { ...column, width: Math.max(column.width, needed) };
}

function classOf({ name, isNumber }) {
  const shown = ALWAYS_SHOWN.includes(name) ? "" : IF_THERE_IS_ROOM.includes(name) ? "if-wider" : "if-wide";
  return `${isNumber ? "number" : ""} ${shown}`.trim();
}

function heading(column) {
  const { name, title, hint, isNumber } = column;
  const isAscendingAtFirst = !isNumber || name === "order";
  const onclick = () => change({ sort: name, ascending: state.sort === name ? !state.ascending : isAscendingAtFirst });
  const button = element("button", { type: "button", title: hint, onclick }, title);
  return element("th", { scope: "col", class: classOf(column) }, button);
}

function orderOf({ name }) {
  if (name !== state.sort) return "none";
  return state.ascending ? "ascending" : "descending";
}

function tableLine(columns, row, index, mostCost) {
  const properties = {
    id: `row-${row.index}`,
    "data-index": index,
    "aria-rowindex": index + 2,
    "aria-selected": row.index === state.row,
    class: row.findings.some(isPingPong) ? "ping-pong" : null,
  };
  return element("tr", properties, ...columns.map((column) => tableCell(column, row, row.cost / mostCost)));
}

function tableCell(column, row, share) {
  const { name, isNumber, key, cell } = column;
  const title = isNumber ? null : name === "place" ? row.file : key(row);
  const made = element("td", { class: classOf(column), title }, key(row) === null ? "" : cell(row));
  made.classList.toggle("zero", key(row) === 0 && name !== "order");
  if (name === (report.timed ? "seconds" : "calls")) {
    made.classList.add("with-share");
    made.style.setProperty("--share", share);
  }
  return made;
}

function countOfRows(rows) {
  const parts = [
    rows.length === report.rows.length ? count(rows.length) : `${count(rows.length)} of ${count(report.rows.length)}`,
    counted(sum(rows, (row) => row.calls), "call"),
    counted(sum(rows, (row) => row.casts), "cast"),
  ];
  if (report.timed) parts.push(duration(sum(rows, (row) => row.seconds ?? 0)));
  return parts.join(" · ");
}

function detailsOf(row) {
  const { casts, casts_down: down, casts_up: up, seconds, cast_seconds: castSeconds } = row;
  const pairs = [
    ["module", row.module],
    ["place", wholePlace(row)],
    ["function", row.function],
    ["reason", `${row.why} (${row.reason})`],
    ["rule", /^rule \d/.test(row.rule) ? `${row.rule} of docs/rules.md` : row.rule],
    ["phase", row.phase],
    ["calls", count(row.calls)],
    ["casts", casts === 0 ? "none" : `${count(casts)}: ${count(down)} down, ${count(up)} up, ${size(row.bytes)}`],
    ["first casts of weights, and casts of small ones", row.needed ? count(row.needed) : null],
    ["cached casts used", row.hits ? count(row.hits) : null],
    ["time", seconds === null ? null : duration(seconds)],
    ["time of casts", castSeconds === null ? null : duration(castSeconds)],
    ...row.findings.map((finding) => [finding.kind, withCode(finding.text)]),
  ];
  return [element("h3", {}, row.operation, " ", precisionBadge(row)), element("dl", {}, ...described(pairs))];
}
