// The data of the page: the report as Python wrote it, and the tree of its modules.

/** All precisions, in the order of bars and filters. */
const PRECISIONS = ["bf16", "fp16", "fp32", "unchanged"];

/** The path that stands for rows without a module. */
const OUTSIDE = "";

function readReport() {
  const data = JSON.parse(byId("report-data").textContent);
  const timed = data.rows.some((row) => row.seconds !== null);
  data.rows.forEach((row, index) => {
    const reason = row.why.startsWith("kept by") ? "kept" : row.reason; // no line of a list
    Object.assign(row, { index, reason, cost: timed ? row.seconds ?? 0 : row.calls, findings: [] });
  });
  for (const finding of data.findings) {
    for (const index of finding.rows) data.rows[index].findings.push(finding);
  }
  return { ...data, timed, ...moduleTree(data.modules, data.rows, timed) };
}

/** Returns the nodes by path, each after its parent, and the root above them, which is no module. */
function moduleTree(modules, rows, timed) {
  const root = { path: null, parent: null, depth: -1, children: [] };
  const nodes = new Map();

  function nodeAt(path) {
    if (nodes.has(path)) return nodes.get(path);
    const dot = path.lastIndexOf(".");
    const parent = dot < 0 ? root : nodeAt(path.slice(0, dot));
    const name = path === OUTSIDE ? "outside of modules" : path.slice(dot + 1);
    const node = { path, name, className: null, parent, depth: parent.depth + 1, children: [], cost: 0, mix: {} };
    nodes.set(path, node);
    parent.children.push(node);
    return node;
  }

  for (const { path, class: className, seconds } of modules) Object.assign(nodeAt(path), { className, seconds });
  for (const { module, precision, cost } of rows) {
    const inner = nodeAt(module ?? OUTSIDE);
    const shown = PRECISIONS.includes(precision) ? precision : "unchanged";
    for (let node = inner; node !== root; node = node.parent) node.mix[shown] = (node.mix[shown] ?? 0) + cost;
    inner.cost += cost;
  }
  for (const node of [...nodes.values()].reverse()) {
    node.cost += sum(node.children, (child) => child.cost);
    if (timed) node.cost = node.seconds ?? node.cost;
  }
  return { root, nodes };
}

/** True if the row is of a module at this path or below it. */
function isInside(row, path) {
  return `${row.module ?? OUTSIDE}.`.startsWith(`${path}.`);
}

/** Returns the path of the innermost module that has all of these rows in it or below it, or null. */
function commonModule(rows) {
  let node = report.nodes.get(rows[0]?.module) ?? report.root;
  while (node !== report.root && !rows.every((row) => isInside(row, node.path))) node = node.parent;
  return node.path;
}
