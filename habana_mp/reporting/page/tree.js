// The tree of modules: a flat list of lines, without those below a closed module.

const TREE_LINE = 24;
const INDENT = 12;
/** At least this many lines are open at first, if there are so many. */
const FIRST_LINES = 10;

function showTree(report, store) {
  const tree = byId("tree");
  if (report.nodes.size === 0 || (report.nodes.size === 1 && report.nodes.has(OUTSIDE))) return;
  byId("modules").hidden = false;
  byId("modules-unit").textContent = report.timed ? "by time from begin to end" : "by calls";
  document.body.classList.add("has-modules");

  const widest = greatest(report.roots, (node) => node.cost);
  let open = openAtFirst(report.roots);
  let kept = null; // while a filter is on: the nodes that stay visible
  let nodes = [];
  let current = null; // the node with the keyboard focus

  const lines = makeWindow({
    viewport: tree,
    body: tree,
    height: TREE_LINE,
    line: (node, index) => {
      const isChosen = node.path === store.get().module;
      return treeLine(report, node, index, { widest, isChosen, isCurrent: node === current, isOpen: isOpen(node) });
    },
    gap: () => element("div", { role: "presentation" }),
  });

  function isOpen(node) {
    return open.has(node) && children(node).length > 0;
  }

  function children(node) {
    return kept === null ? node.children : node.children.filter((child) => kept.has(child));
  }

  function refill() {
    const wanted = report.roots.filter((node) => kept === null || kept.has(node));
    nodes = flattened(wanted, isOpen, children);
    if (!nodes.includes(current)) current = nodes[0] ?? null;
    byId("tree-none").hidden = nodes.length > 0;
    lines.fill(nodes);
    pointAtCurrent();
  }

  function pointAtCurrent() {
    if (current === null) tree.removeAttribute("aria-activedescendant");
    else tree.setAttribute("aria-activedescendant", treeId(nodes.indexOf(current)));
  }

  function moveTo(node) {
    current = node;
    lines.show(nodes.indexOf(node));
    lines.draw();
    pointAtCurrent();
  }

  function setOpen(node, wanted) {
    if (wanted) open.add(node);
    else open.delete(node);
    refill();
  }

  function choose(node) {
    store.set({ module: store.get().module === node.path ? null : node.path, finding: null, row: null });
  }

  function reveal(node) {
    for (let above = node.parent; above !== null; above = above.parent) open.add(above);
    refill();
    if (nodes.includes(node)) moveTo(node);
  }

  const keys = {
    ArrowRight() {
      if (isOpen(current)) moveTo(children(current)[0]);
      else setOpen(current, true);
    },
    ArrowLeft() {
      if (isOpen(current)) setOpen(current, false);
      else if (current.parent !== null) moveTo(current.parent);
    },
    Enter: () => choose(current),
  };

  tree.addEventListener("keydown", (event) => {
    if (current === null || event.altKey || event.ctrlKey || event.metaKey) return;
    const target = movedTo(event.key, nodes.indexOf(current), nodes.length, lines.page());
    if (target === null && !(event.key in keys)) return;
    event.preventDefault();
    if (target === null) keys[event.key]();
    else moveTo(nodes[target]);
  });

  tree.addEventListener("click", (event) => {
    const index = clickedIndex(event);
    if (index === null) return;
    current = nodes[index];
    if (event.target.closest(".twisty") !== null) setOpen(current, !isOpen(current));
    else choose(current);
    pointAtCurrent();
  });

  byId("tree-filter").addEventListener("input", (event) => {
    kept = keptNodes(report, event.target.value);
    open = kept === null ? openAtFirst(report.roots) : new Set(kept);
    refill();
  });

  store.listen(["module"], ({ module }) => (module === null ? lines.draw() : reveal(report.nodes.get(module))));
  let openBefore = open;
  whenPrinting((printing) => {
    if (printing) openBefore = open;
    open = printing ? new Set(report.nodes.values()) : openBefore;
    refill();
  });
  refill();
  if (store.get().module !== null) reveal(report.nodes.get(store.get().module));
}

/** Returns the nodes to open: whole levels from the top, until there are enough lines. */
function openAtFirst(top) {
  const open = new Set();
  let level = top;
  for (let lines = level.length; lines < FIRST_LINES && level.length > 0; lines += level.length) {
    for (const node of level) open.add(node);
    level = level.flatMap((node) => node.children);
  }
  return open;
}

/** Returns the nodes whose path or class contains the text, and those above them; null for an empty text. */
function keptNodes(report, value) {
  const text = value.trim().toLowerCase();
  if (text === "") return null;
  const kept = new Set();
  for (const node of report.nodes.values()) {
    if (!`${node.path || node.name}\n${node.className ?? ""}`.toLowerCase().includes(text)) continue;
    for (let one = node; one !== null && !kept.has(one); one = one.parent) kept.add(one);
  }
  return kept;
}

function flattened(top, isOpen, children) {
  const found = [];
  const waiting = [...top].reverse();
  while (waiting.length > 0) {
    const node = waiting.pop();
    found.push(node);
    if (isOpen(node)) for (const child of [...children(node)].reverse()) waiting.push(child);
  }
  return found;
}

function treeId(index) {
  return `tree-${index}`;
}

function treeLine(report, node, index, { widest, isCurrent, isOpen, isChosen }) {
  const siblings = node.parent === null ? report.roots : node.parent.children;
  const properties = {
    id: treeId(index),
    class: isCurrent ? "tree-line current" : "tree-line",
    role: "treeitem",
    "data-index": index,
    "data-path": node.path,
    "aria-level": node.depth + 1,
    "aria-setsize": siblings.length,
    "aria-posinset": siblings.indexOf(node) + 1,
    "aria-selected": String(isChosen),
    "aria-expanded": node.children.length > 0 ? String(isOpen) : null,
    title: treeTitle(report, node),
  };
  const twisty = element("span", { class: node.children.length > 0 ? "twisty" : "no-twisty", "aria-hidden": "true" });
  const className = node.className === null ? null : element("small", {}, node.className);
  const name = element("span", { class: "name" }, node.name, className);
  const mix = element("span", { class: "mix", "aria-hidden": "true" }, stackedBar(node.mix));
  const bar = stackedBar(node.mix);
  bar.style.width = `${widest > 0 ? (100 * node.cost) / widest : 0}%`;
  const cost = element("span", { class: "cost" }, costInWords(report, node.cost));
  const line = element("div", properties, twisty, mix, name, element("span", { class: "bar" }, bar), cost);
  line.style.paddingLeft = `${node.depth * INDENT}px`;
  return line;
}

function treeTitle(report, node) {
  const all = sum(Object.values(node.mix), (cost) => cost);
  const shares = PRECISIONS.filter((precision) => node.mix[precision] > 0).map(
    (precision) => `${percent(node.mix[precision] / all)} ${precision}`,
  );
  const cost = report.timed ? duration(node.cost) : counted(node.cost, "call");
  return [node.path || node.name, node.className, cost, ...shares].filter((line) => line !== null).join("\n");
}
