// What the user can restrict the table to, and the rows that remain.

/** Sorts layer.2 before layer.10. */
const COLLATOR = new Intl.Collator("en", { numeric: true });

/** Returns the rows that the filters leave, in the order of the table. */
function shownRows() {
  const { module, finding, precisions, reason, phase, text } = state;
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = finding === null ? report.rows : report.findings[finding].rows.map((index) => report.rows[index]);
  const left = rows.filter(
    (row) =>
      (module === null || isInside(row, module)) &&
      (precisions.length === 0 || precisions.includes(row.precision)) &&
      (reason === null || row.reason === reason) &&
      (phase === null || row.phase === phase) &&
      words.every((word) => isFoundIn(row, word)),
  );
  return sorted(left, COLUMNS.find((column) => column.name === state.sort));
}

/** True if the word is in the row's text. A precision's name matches only that precision, not a list file's name. */
function isFoundIn(row, word) {
  if (PRECISIONS.includes(word)) return row.precision === word;
  const { operation, precision, phase, module, function: name, reason, why, rule } = row;
  row.text ??= [operation, precision, phase, module, wholePlace(row), name, reason, why, rule].join("\n").toLowerCase();
  return row.text.includes(word);
}

/** Sorts by a column. Rows without a value are last in both directions, equal rows in the order of first calls. */
function sorted(rows, { key, isNumber }) {
  const sign = state.ascending ? 1 : -1;
  return rows.sort((a, b) => {
    const [one, other] = [key(a), key(b)];
    if (one === null || other === null) return (one === null) - (other === null);
    return sign * (isNumber ? one - other : COLLATOR.compare(one, other)) || a.order - b.order;
  });
}

function showFilters() {
  const search = byId("search");
  search.addEventListener("input", () => change({ text: search.value }));
  views.push(() => {
    if (search.value !== state.text) search.value = state.text;
  });
  showPrecisionButtons();
  fillChoice("reason", "All reasons", (row) => row.why);
  fillChoice("phase", "All phases", (row) => row.phase);
  views.push(() => byId("restrictions").replaceChildren(...restrictions()));
}

/** Shows a button for each precision. If any is pressed, only the pressed ones are shown. */
function showPrecisionButtons() {
  const present = [...new Set(report.rows.map((row) => row.precision))];
  const rank = (precision) => PRECISIONS.indexOf(precision);
  for (const precision of present.sort((one, other) => rank(one) - rank(other))) {
    const onclick = () => {
      const others = state.precisions.filter((one) => one !== precision);
      change({ precisions: others.length < state.precisions.length ? others : [...others, precision] });
    };
    const properties = { type: "button", class: "control choice", onclick };
    const button = element("button", properties, swatch(precision), precision);
    byId("filter-precision").append(button);
    views.push(() => button.setAttribute("aria-pressed", state.precisions.includes(precision)));
  }
}

/** Fills the filter of one field with the existing values; `all` is the word for no filter. */
function fillChoice(field, all, named) {
  const select = byId(`filter-${field}`);
  const found = new Map();
  for (const row of report.rows) found.set(row[field], [...(found.get(row[field]) ?? []), row]);
  const values = [...found].sort(([, one], [, other]) => other.length - one.length);
  select.append(element("option", { value: "" }, all));
  select.append(
    ...values.map(([value, rows]) => element("option", { value }, `${named(rows[0])} (${count(rows.length)})`)),
  );
  select.addEventListener("change", () => change({ [field]: select.value || null }));
  views.push(() => (select.value = state[field] ?? ""));
}

/** Returns the module and the finding that restrict the table, each with a button that removes the restriction. */
function restrictions() {
  const { module, finding } = state;
  const shown = [];
  if (module !== null) shown.push([module || "outside of modules", { module: null, finding: null }]);
  if (finding !== null) shown.push([`${report.findings[finding].kind} ${finding + 1}`, { finding: null }]);
  return shown.map(([text, without]) => {
    const properties = { type: "button", class: "control", "aria-label": `Do not restrict to ${text}` };
    const button = element("button", { ...properties, onclick: () => change(without) }, "×");
    return element("span", { class: "restriction" }, endOf(text), button);
  });
}
