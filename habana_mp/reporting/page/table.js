// The table of operations.

const TABLE_LINE = 24;
const TABLE_HEAD = 28;

/** Returns a column of words. `key` returns the sort key of a row, or null; `cell` returns the content. */
function words(name, title, width, key, cell = key) {
  return { name, title, width, key, cell, isNumber: false, hint: null };
}

/** Returns a column of the numbers in the field `name` of rows; `shown` formats a number. */
function numbers(name, title, width, shown = count, hint = null) {
  return { name, title, width, key: (row) => row[name], shown, isNumber: true, hint };
}

/** All columns. A column is hidden if no row has a key in it. */
const COLUMNS = [
  numbers("order", "#", 46, String, "order of the first call"),
  words("operation", "operation", 134, (row) => row.operation),
  words("precision", "precision", 86, (row) => row.precision, precisionBadge),
  words("reason", "reason", 124, (row) => row.why),
  words("phase", "phase", 72, (row) => row.phase),
  words("module", "module", 164, (row) => row.module, (row) => endOf(row.module)),
  numbers("seconds", "ms", 66, milliseconds, "time in milliseconds"),
  numbers("calls", "calls", 52),
  numbers("casts", "casts", 54),
  numbers("bytes", "MB cast", 68, megabytes),
  numbers("cast_seconds", "cast ms", 62, milliseconds, "time of casts in milliseconds"),
  numbers("hits", "cached", 62, count, "how often a cached cast of a weight was used"),
  words("place", "place", 128, placeOf, (row) => endOf(placeOf(row))),
];

/** The pixels of a digit, and of the space around a number. */
const DIGIT = 7.5;
const AROUND = 15;

function columnNamed(name) {
  return COLUMNS.find((column) => column.name === name);
}

function placeOf({ file, line }) {
  return file === null ? null : `${fileName(file)}:${line}`;
}

/** Returns a text that is cut at its beginning, not at its end, if the room is short. */
function endOf(text) {
  return element("span", { class: "end" }, element("bdi", {}, text));
}

function showTable(report, store) {
  const view = byId("table-view");
  const table = byId("table");
  const columns = COLUMNS.filter((column) => report.rows.some((row) => column.key(row) !== null)).map((column) =>
    column.isNumber ? { ...column, width: Math.max(column.width, widthOfNumbers(column, report.rows)) } : column,
  );
  const mostCost = greatest(report.rows, (row) => row.cost);
  table.querySelector("colgroup").append(...columnElements(columns));
  table.style.minWidth = `${widthOf(columns)}px`;
  if (report.rows.length === 0) byId("table-none").textContent = "No operation was seen.";
  let rows = [];

  const lines = makeWindow({
    viewport: view,
    body: table.tBodies[0],
    height: TABLE_LINE,
    above: TABLE_HEAD,
    line: (row, index) => tableLine(report, columns, row, index, { mostCost, chosen: store.get().row }),
    gap: () => element("tr", { class: "gap", "aria-hidden": "true" }),
  });

  function refill(state) {
    rows = shownRows(report, state);
    byId("operations-count").textContent = countOfRows(report, rows);
    byId("table-none").hidden = rows.length > 0;
    table.setAttribute("aria-rowcount", rows.length + 1);
    lines.fill(rows);
  }

  function choose(index) {
    store.set({ row: rows[index].index });
  }

  function showChosen({ row }) {
    byId("row-details").hidden = row === null;
    byId("row-details").replaceChildren(...(row === null ? [] : detailsOf(report, report.rows[row])));
    const index = rows.findIndex((shown) => shown.index === row);
    if (index >= 0) lines.show(index);
    lines.draw();
    if (index >= 0) table.setAttribute("aria-activedescendant", `row-${row}`);
    else table.removeAttribute("aria-activedescendant");
  }

  table.addEventListener("click", (event) => {
    const index = clickedIndex(event);
    if (index !== null) choose(index);
  });
  table.addEventListener("keydown", (event) => {
    if (event.target !== table) return; // a heading's button has keys of its own
    const from = rows.findIndex((row) => row.index === store.get().row);
    const to = movedTo(event.key, from, rows.length, lines.page());
    if (to !== null) {
      event.preventDefault();
      choose(to);
      byId(`row-${rows[to].index}`).scrollIntoView({ block: "nearest" }); // the table may be partly out of the window
    } else if (event.key === "Escape") store.set({ row: null });
  });

  const changes = ["module", "finding", "text", "precisions", "reason", "phase", "sort", "ascending"];
  store.listen(changes, (state) => {
    view.scrollTop = 0;
    refill(state);
  });
  store.listen(["sort", "ascending"], (state) => showHeadings(columns, state, store));
  store.listen(["row"], showChosen);
  showHeadings(columns, store.get(), store);
  refill(store.get());
}

/** Returns a width at which no number is cut. */
function widthOfNumbers(column, rows) {
  const shown = (row) => (column.key(row) === null ? "" : column.shown(column.key(row)));
  return Math.ceil(AROUND + DIGIT * greatest(rows, (row) => shown(row).length));
}

function widthOf(columns) {
  return sum(columns, (column) => column.width);
}

function columnElements(columns) {
  return columns.map((column) => {
    const made = element("col", { class: classOf(column) });
    made.style.width = `${(100 * column.width) / widthOf(columns)}%`;
    return made;
  });
}

/** A narrow window shows only these columns; the others are in the details of a chosen row. */
const ALWAYS_SHOWN = new Set(["operation", "precision", "seconds", "calls"]);

function classOf({ name, isNumber }) {
  return [isNumber ? "number" : "", ALWAYS_SHOWN.has(name) ? "" : "if-wide"].filter(Boolean).join(" ") || null;
}

// ---- headings ------------------------------------------------------------------------------------------------------

function showHeadings(columns, state, store) {
  const head = byId("table").tHead;
  const focused = document.activeElement?.dataset.column;
  head.replaceChildren(element("tr", {}, ...columns.map((column) => heading(column, state, store))));
  if (focused !== undefined) head.querySelector(`[data-column="${focused}"]`)?.focus();
}

function heading(column, { sort, ascending }, store) {
  const isSorted = column.name === sort;
  const isAscendingAtFirst = !column.isNumber || column.name === "order";
  const sortBy = () => store.set({ sort: column.name, ascending: isSorted ? !ascending : isAscendingAtFirst });
  const order = isSorted ? (ascending ? "ascending" : "descending") : "none";
  const properties = { type: "button", "data-column": column.name, title: column.hint, onclick: sortBy };
  const button = element("button", properties, column.title);
  return element("th", { scope: "col", class: classOf(column), "aria-sort": order }, button);
}

// ---- lines ---------------------------------------------------------------------------------------------------------

function tableLine(report, columns, row, index, { mostCost, chosen }) {
  const properties = {
    id: `row-${row.index}`,
    "data-index": index,
    "aria-rowindex": index + 2,
    "aria-selected": String(row.index === chosen),
    class: row.findings.some(isPingPong) ? "ping-pong" : null,
  };
  return element("tr", properties, ...columns.map((column) => tableCell(report, column, row, mostCost)));
}

function tableCell(report, column, row, mostCost) {
  const key = column.key(row);
  if (!column.isNumber) {
    const content = key === null ? "" : column.cell(row);
    return element("td", { class: classOf(column), title: column.name === "place" ? row.file : key }, content);
  }
  const isZero = key === 0 && column.name !== "order";
  const classes = isZero ? `${classOf(column)} zero` : classOf(column);
  const cell = element("td", { class: classes }, key === null ? "" : column.shown(key));
  if (column.name === (report.timed ? "seconds" : "calls")) withShare(cell, row.cost / mostCost);
  return cell;
}

function withShare(cell, share) {
  cell.classList.add("with-share");
  cell.style.setProperty("--share", share);
}

function countOfRows(report, rows) {
  const parts = [
    rows.length === report.rows.length ? count(rows.length) : `${count(rows.length)} of ${count(report.rows.length)}`,
    counted(sum(rows, (row) => row.calls), "call"),
    counted(sum(rows, (row) => row.casts), "cast"),
    report.timed ? duration(sum(rows, (row) => row.seconds ?? 0)) : null,
  ];
  return parts.filter((part) => part !== null).join(" · ");
}

// ---- filters -------------------------------------------------------------------------------------------------------

function showFilters(report, store) {
  byId("search").addEventListener("input", (event) => store.set({ text: event.target.value }));
  byId("filter-precision").append(...precisionButtons(report, store));
  fillChoice(report, store, "reason", "All reasons", (row) => row.why);
  fillChoice(report, store, "phase", "All phases", (row) => row.phase);
  store.listen(["text"], ({ text }) => {
    if (byId("search").value !== text) byId("search").value = text;
  });
  store.listen(["module", "finding"], () => showRestrictions(report, store));
  showRestrictions(report, store);
}

function precisionButtons(report, store) {
  const present = [...new Set(report.rows.map((row) => row.precision))];
  const rank = (precision) => PRECISIONS.indexOf(precision);
  return present.sort((one, other) => rank(one) - rank(other)).map((precision) => precisionButton(precision, store));
}

/** Returns the button of a precision. If it is pressed, only this precision is shown. */
function precisionButton(precision, store) {
  const button = element("button", { type: "button", class: "control choice", "aria-pressed": "false" });
  button.append(element("i", { class: `swatch ${precisionClass(precision)}` }), precision);
  button.addEventListener("click", () => {
    const chosen = store.get().precisions;
    const without = chosen.filter((one) => one !== precision);
    store.set({ precisions: without.length < chosen.length ? without : [...chosen, precision] });
  });
  store.listen(["precisions"], ({ precisions }) => {
    button.setAttribute("aria-pressed", String(precisions.includes(precision)));
  });
  return button;
}

/** Fills the filter of one field with the existing values; `all` is the word for no filter. */
function fillChoice(report, store, field, all, named) {
  const select = byId(`filter-${field}`);
  const found = new Map();
  for (const row of report.rows) {
    const value = found.get(row[field]) ?? { name: named(row), rows: 0 };
    value.rows += 1;
    found.set(row[field], value);
  }
  const values = [...found].sort(([, one], [, other]) => other.rows - one.rows);
  select.append(element("option", { value: "" }, all));
  select.append(...values.map(([value, of]) => element("option", { value }, `${of.name} (${count(of.rows)})`)));
  select.addEventListener("change", () => store.set({ [field]: select.value || null }));
  store.listen([field], (state) => (select.value = state[field] ?? ""));
}

/** Shows the module and the finding that restrict the table, each with a button that removes the restriction. */
function showRestrictions(report, store) {
  const { module, finding } = store.get();
  const shown = [];
  if (module !== null) {
    shown.push(restriction(module || "outside of modules", () => store.set({ module: null, finding: null })));
  }
  if (finding !== null) {
    shown.push(restriction(`${report.findings[finding].kind} ${finding + 1}`, () => store.set({ finding: null })));
  }
  byId("restrictions").replaceChildren(...shown);
}

function restriction(text, onclick) {
  const label = `Do not restrict to ${text}`;
  const button = element("button", { type: "button", class: "control", "aria-label": label, onclick }, "×");
  return element("span", { class: "restriction" }, endOf(text), button);
}
