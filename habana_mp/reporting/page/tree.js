// The tree of modules: a flat list of lines, without those below a closed module.

const TREE_LINE = 24;
const INDENT = 12;
/** At least this many lines are open at first, if there are so many. */
const FIRST_LINES = 10;

function showTree() {
  const tree = byId("tree");
  const nodes = [...report.nodes.values()];
  if (nodes.every((node) => node.path === OUTSIDE)) return;
  byId("modules").hidden = false;
  byId("modules-unit").textContent = report.timed ? "by time from begin to end, Python's included" : "by calls";
  document.body.classList.add("has-modules");

  let shown = [];
  let current = null; // the node with the keyboard focus
  let drawn = {};
  const children = (node) => node.children.filter((child) => child.isKept);
  const isOpen = (node) => (state.printing || node.isOpen) && children(node).length > 0;
  const below = (node) => children(node).flatMap((child) => [child, ...(isOpen(child) ? below(child) : [])]);
  const lines = makeWindow(tree, tree, TREE_LINE, 0, (node, i) => treeLine(node, i, isOpen(node), node === current));

  function draw() {
    if (state.module !== drawn.module && state.module !== null) {
      current = report.nodes.get(state.module);
      for (let above = current.parent; above !== null; above = above.parent) above.isOpen = true;
    }
    shown = below(report.root);
    if (!shown.includes(current)) current = shown[0] ?? null;
    byId("tree-none").hidden = shown.length > 0;
    lines.fill(shown);
    if (current !== drawn.current) lines.show(shown.indexOf(current));
    tree.setAttribute("aria-activedescendant", `tree-${shown.indexOf(current)}`);
    drawn = { module: state.module, current };
  }

  /** Keeps the nodes whose path or class contains the text, and those above them. */
  function filter(text) {
    const depth = depthAtFirst(nodes);
    for (const node of [...nodes].reverse()) {
      const words = `${node.path || node.name}\n${node.className ?? ""}`.toLowerCase();
      node.isKept = words.includes(text) || node.children.some((child) => child.isKept);
      node.isOpen = text !== "" || node.depth < depth;
    }
    draw();
  }

  function choose() {
    change({ module: state.module === current.path ? null : current.path, finding: null, row: null });
  }

  const keys = {
    ArrowRight() {
      if (isOpen(current)) current = children(current)[0];
      else current.isOpen = true;
    },
    ArrowLeft() {
      if (isOpen(current)) current.isOpen = false;
      else if (current.parent !== report.root) current = current.parent;
    },
    Enter: choose,
  };

  tree.addEventListener("keydown", (event) => {
    if (current === null || event.altKey || event.ctrlKey || event.metaKey) return;
    const target = lines.movedTo(event.key, shown.indexOf(current));
    if (target === null && !(event.key in keys)) return;
    event.preventDefault();
    if (target === null) keys[event.key]();
    else current = shown[target];
    draw();
  });

  tree.addEventListener("click", (event) => {
    const index = clickedIndex(event);
    if (index === null) return;
    current = shown[index];
    if (event.target.closest(".twisty") === null) choose();
    else current.isOpen = !isOpen(current);
    draw();
  });

  byId("tree-filter").addEventListener("input", (event) => filter(event.target.value.trim().toLowerCase()));
  views.push(draw);
  filter("");
}

/** Returns how many levels to open: from the top, until there are enough lines. */
function depthAtFirst(nodes) {
  const levels = nodes.map((node) => node.depth).sort((one, other) => one - other);
  return levels[FIRST_LINES - 1] ?? levels.at(-1);
}

function treeLine(node, index, isOpen, isCurrent) {
  const siblings = node.parent.children;
  const hasChildren = node.children.length > 0;
  const bar = stackedBar(node.mix);
  const widest = greatest(report.root.children, (one) => one.cost);
  bar.style.width = `${widest > 0 ? (100 * node.cost) / widest : 0}%`;
  const properties = {
    id: `tree-${index}`,
    class: isCurrent ? "tree-line current" : "tree-line",
    role: "treeitem",
    "data-index": index,
    "data-path": node.path,
    "aria-level": node.depth + 1,
    "aria-setsize": siblings.length,
    "aria-posinset": siblings.indexOf(node) + 1,
    "aria-selected": node.path === state.module,
    "aria-expanded": hasChildren ? isOpen : null,
    title: treeTitle(node),
  };
  const className = node.className === null ? null : element("small", {}, node.className);
  const line = element(
    "div",
    properties,
    element("span", { class: hasChildren ? "twisty" : "no-twisty", "aria-hidden": "true" }),
    element("span", { class: "mix", "aria-hidden": "true" }, stackedBar(node.mix)),
    element("span", { class: "name" }, node.name, className),
    element("span", { class: "bar" }, bar),
    element("span", { class: "cost" }, report.timed ? duration(node.cost) : count(node.cost)),
  );
  line.style.paddingLeft = `${node.depth * INDENT}px`;
  return line;
}

function treeTitle({ path, name, className, cost, mix }) {
  const amount = (of) => (report.timed ? duration(of) : counted(of, "call"));
  const parts = PRECISIONS.filter((one) => mix[one] > 0).map((one) => `${one}: ${amount(mix[one])}`);
  return [path || name, className, amount(cost), ...parts].filter((line) => line !== null).join("\n");
}
