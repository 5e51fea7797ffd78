// The data of the page: the report as Python wrote it, and the tree of its modules.

/** All precisions, in the order of bars and filters. */
const PRECISIONS = ["bf16", "fp16", "fp32", "unchanged"];

/** The path that stands for rows without a module. */
const OUTSIDE = "";

function readReport() {
  const data = JSON.parse(byId("report-data").textContent);
  const timed = data.rows.some((row) => row.seconds !== null);
  data.rows.forEach((row, index) => {
    row.index = index;
    row.cost = timed ? row.seconds ?? 0 : row.calls;
    row.findings = [];
  });
  for (const finding of data.findings) {
    for (const index of finding.rows) data.rows[index].findings.push(finding);
  }
  const nodes = moduleTree(data.modules, data.rows, timed);
  const roots = [...nodes.values()].filter((node) => node.parent === null);
  return { ...data, timed, nodes, roots };
}

/** Returns a cost of this report in words: seconds if it has times, else calls. */
function costInWords(report, cost) {
  return report.timed ? duration(cost) : count(cost);
}

// ---- the tree of modules -------------------------------------------------------------------------------------------

/** Returns all nodes by path, each after its parent. */
function moduleTree(modules, rows, timed) {
  const nodes = new Map();
  for (const { path, class: className, seconds } of modules) {
    Object.assign(nodeAt(nodes, path), { className, seconds: timed ? seconds : null });
  }
  for (const row of rows) nodeAt(nodes, row.module ?? OUTSIDE).rows.push(row);
  for (const node of [...nodes.values()].reverse()) addUp(node);
  return nodes;
}

function nodeAt(nodes, path) {
  const known = nodes.get(path);
  if (known !== undefined) return known;
  const dot = path.lastIndexOf(".");
  const parent = dot < 0 ? null : nodeAt(nodes, path.slice(0, dot));
  const node = {
    path,
    name: path === OUTSIDE ? "outside of modules" : path.slice(dot + 1),
    className: null,
    parent,
    depth: parent === null ? 0 : parent.depth + 1,
    children: [],
    rows: [],
    seconds: null,
    cost: 0,
    mix: {},
  };
  nodes.set(path, node);
  parent?.children.push(node);
  return node;
}

/** Adds up the node's cost and precisions, with those of the nodes below, which are known by now. */
function addUp(node) {
  for (const row of node.rows) addCost(node, row.precision, row.cost);
  for (const child of node.children) {
    for (const [precision, cost] of Object.entries(child.mix)) addCost(node, precision, cost);
  }
  node.cost = node.seconds ?? sum(node.rows, (row) => row.cost) + sum(node.children, (child) => child.cost);
}

function addCost(node, precision, cost) {
  const shown = PRECISIONS.includes(precision) ? precision : "unchanged";
  node.mix[shown] = (node.mix[shown] ?? 0) + cost;
}

function sum(items, value) {
  return items.reduce((total, item) => total + value(item), 0);
}

/** Returns the greatest value, or 0. (A spread into Math.max has a limit.) */
function greatest(items, value) {
  return items.reduce((most, item) => Math.max(most, value(item)), 0);
}

/** Returns the rows of a module and of the modules below it; all rows for null. */
function rowsBelow(report, path) {
  if (path === null) return report.rows;
  const found = [];
  const waiting = [report.nodes.get(path)];
  while (waiting.length > 0) {
    const node = waiting.pop();
    for (const row of node.rows) found.push(row);
    for (const child of node.children) waiting.push(child);
  }
  return found;
}

/** Returns the innermost module that has all of these rows in it or below it, or null. */
function commonModule(report, rows) {
  let path = rows[0]?.module ?? null;
  const inside = (row) => row.module === path || row.module?.startsWith(`${path}.`);
  while (path !== null && !rows.every(inside)) path = report.nodes.get(path).parent?.path ?? null;
  return path;
}

// ---- the visible part ----------------------------------------------------------------------------------------------

/** Returns the rows that the filters of a state leave, in its order. */
function shownRows(report, state) {
  const words = state.text.toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = state.finding === null ? null : new Set(report.findings[state.finding].rows);
  const rows = rowsBelow(report, state.module).filter(
    (row) =>
      (wanted === null || wanted.has(row.index)) &&
      (state.precisions.length === 0 || state.precisions.includes(row.precision)) &&
      (state.reason === null || row.reason === state.reason) &&
      (state.phase === null || row.phase === state.phase) &&
      words.every((word) => isFoundIn(row, word)),
  );
  return sorted(rows, columnNamed(state.sort), state.ascending);
}

/** True if the word is in the row's text. A precision's name matches only that precision, not a list file's name. */
function isFoundIn(row, word) {
  return PRECISIONS.includes(word) ? row.precision === word : searchText(row).includes(word);
}

/** Returns all words that are shown of a row. */
function searchText(row) {
  const { operation, precision, phase, module, file, line, reason, why, rule } = row;
  const place = file === null ? null : `${file}:${line}`;
  row.text ??= [operation, precision, phase, module, place, row.function, reason, why, rule]
    .filter((part) => part !== null)
    .join("\n")
    .toLowerCase();
  return row.text;
}

/** Sorts by a column. Rows without a value are last in both directions, equal rows in the order of first calls. */
function sorted(rows, column, ascending) {
  const sign = ascending ? 1 : -1;
  const keyed = rows.map((row) => ({ row, key: column.key(row) }));
  keyed.sort((one, other) => {
    if (one.key === null || other.key === null) return (one.key === null) - (other.key === null);
    return sign * compared(one.key, other.key) || one.row.order - other.row.order;
  });
  return keyed.map(({ row }) => row);
}

function compared(one, other) {
  return typeof one === "number" ? one - other : COLLATOR.compare(one, other);
}

/** Sorts layer.2 before layer.10. */
const COLLATOR = new Intl.Collator("en", { numeric: true });
