// The operations of the chosen module as a graph.

const MOST_NODES = 200;

function showGraph(report, store) {
  if (report.edges.length === 0) return;
  byId("graph").hidden = false;
  const view = byId("graph-view");
  let shown = []; // the rows in the drawing, in the order of their first calls

  function refill(state) {
    const rows = graphRows(report, state);
    shown = rows.slice(0, MOST_NODES);
    byId("graph-count").textContent = countOfNodes(shown.length, rows.length);
    view.replaceChildren(drawing(report, shown, state.module));
    view.scrollTop = 0;
    if (shown.length > 0) {
      scrollTo(state.finding === null ? firstOfModel(shown).index : firstOf(report.findings[state.finding]));
    }
    markChosen(state);
  }

  function markChosen({ row, finding }) {
    const inFinding = new Set(finding === null ? [] : report.findings[finding].rows);
    for (const node of view.querySelectorAll(".node")) {
      const index = Number(node.dataset.index);
      node.classList.toggle("of-finding", inFinding.has(index));
      node.classList.toggle("chosen", index === row);
      node.setAttribute("aria-pressed", String(index === row));
    }
    if (row !== null) scrollTo(row);
    tell(row);
  }

  function node(index) {
    return view.querySelector(`.node[data-index="${index}"]`);
  }

  function firstOf(finding) {
    return shown.find((row) => finding.rows.includes(row.index))?.index ?? shown[0].index;
  }

  /** Scrolls the view, but not the page around it. */
  function scrollTo(index) {
    const box = node(index)?.getBoundingClientRect();
    const frame = view.getBoundingClientRect();
    if (box === undefined || isWithin(box, frame)) return;
    view.scrollTop += box.top - frame.top - (frame.height - box.height) / 2;
    view.scrollLeft += box.left - frame.left - (frame.width - box.width) / 2;
  }

  function tell(index) {
    const hint = "Point at an operation, or go to it by arrow keys, to see more of it.";
    const details = index === null ? [element("p", { class: "quiet" }, hint)] : detailsOf(report, report.rows[index]);
    byId("graph-details").replaceChildren(...details);
  }

  function focus(index) {
    for (const other of view.querySelectorAll('.node[tabindex="0"]')) other.setAttribute("tabindex", -1);
    node(index).setAttribute("tabindex", 0);
    node(index).focus({ preventScroll: true });
    scrollTo(index);
  }

  for (const event of ["mouseover", "focusin"]) {
    view.addEventListener(event, (of) => {
      const index = clickedIndex(of);
      if (index !== null) tell(index);
    });
  }
  view.addEventListener("mouseleave", () => tell(store.get().row));
  view.addEventListener("click", (event) => {
    const index = clickedIndex(event);
    if (index !== null) store.set({ row: index });
  });
  view.addEventListener("keydown", (event) => {
    const index = clickedIndex(event);
    if (index === null) return;
    const from = shown.findIndex((row) => row.index === index);
    const to = movedTo(event.key, from, shown.length, 1);
    if (to !== null) focus(shown[to].index);
    else if (event.key === "Enter" || event.key === " ") store.set({ row: index });
    else return;
    event.preventDefault();
  });

  store.listen(["module", "phase", "finding"], refill);
  store.listen(["row"], markChosen);
  refill(store.get());
}

/** Returns the beginning of the model: the first forward call within a module, whatever was called before. */
function firstOfModel(rows) {
  return rows.find((row) => row.module !== null && row.phase === "forward") ?? rows[0];
}

function isWithin(box, frame) {
  return box.top >= frame.top && box.bottom <= frame.bottom && box.left >= frame.left && box.right <= frame.right;
}

/** Returns the rows of the graph. It follows the module and the phase; other filters would break it into pieces. */
function graphRows(report, { module, phase }) {
  const rows = rowsBelow(report, module).filter((row) => phase === null || row.phase === phase);
  return rows.sort((one, other) => one.order - other.order);
}

function countOfNodes(shown, all) {
  if (shown === all) return counted(all, "operation");
  return `the first ${shown} of ${count(all)} operations; choose a module further down to see its own`;
}

// ---- drawing -------------------------------------------------------------------------------------------------------

function drawing(report, rows, module) {
  const inside = new Set(rows.map((row) => row.index));
  const edges = report.edges.filter(({ from, to }) => inside.has(from) && inside.has(to));
  const { places, routes, width, height } = layered(rows, edges);
  return drawn(
    "svg",
    {
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      role: "group",
      "aria-label": "Operations in the order of their calls; arrow keys move",
    },
    definitions(),
    ...routes.map((route) => edgeLine(report, route)),
    ...routes.filter(({ edge }) => edge.casts > 0).map((route) => castNode(report, route)),
    ...rows.map((row, i) => operationNode(report, row, places.get(row.index), module, i === 0)),
  );
}

/** Returns the arrow heads, and the patterns that distinguish precisions without colour. */
function definitions() {
  return drawn(
    "defs",
    {},
    drawn(
      "marker",
      {
        id: "arrow",
        viewBox: "0 0 8 8",
        refX: 7,
        refY: 4,
        markerUnits: "userSpaceOnUse",
        markerWidth: 8,
        markerHeight: 8,
        orient: "auto",
      },
      drawn("path", { d: "M0 0.5 L8 4 L0 7.5 z", class: "arrow" }),
    ),
    pattern("stripes", { patternTransform: "rotate(45)" }, drawn("rect", { width: 3, height: 6, class: "ink" })),
    pattern("dots", {}, drawn("circle", { cx: 3, cy: 3, r: 1.5, class: "ink" })),
  );
}

function pattern(id, properties, ...content) {
  return drawn("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", ...properties }, ...content);
}

function edgeLine(report, { edge, points, upwards }) {
  const classes = ["edge", edge.casts > 0 ? "with-casts" : "", isPingPongEdge(report, edge) ? "ping-pong" : ""];
  return drawn("path", {
    d: upwards ? upwardPath(points) : downwardPath(points),
    class: classes.filter(Boolean).join(" "),
    "marker-end": "url(#arrow)",
    "data-from": edge.from,
    "data-to": edge.to,
  });
}

/** Returns a path that is straight through lanes and curved between layers. */
function downwardPath(points) {
  let path = `M${points[0].x} ${points[0].y}`;
  for (let i = 1; i < points.length; i += 2) {
    const [from, to] = [points[i - 1], points[i]];
    const middle = (from.y + to.y) / 2;
    path += ` C${from.x} ${middle} ${to.x} ${middle} ${to.x} ${to.y}`;
    if (i + 1 < points.length) path += ` L${points[i + 1].x} ${points[i + 1].y}`;
  }
  return path;
}

function upwardPath([from, to]) {
  const beside = Math.max(from.x, to.x) + SIDE_GAP * 2;
  return `M${from.x} ${from.y} C${beside} ${from.y} ${beside} ${to.y} ${to.x} ${to.y}`;
}

/** Returns the direction of a cast: up to float32, or down to a lower precision. */
function directionOf(report, edge) {
  return report.rows[edge.to].precision === "fp32" ? "up" : "down";
}

function castNode(report, { edge, points, upwards }) {
  const [from, to] = points.slice(-2);
  const [x, y] = [(from.x + to.x) / 2 + (upwards ? SIDE_GAP * 1.5 : 0), (from.y + to.y) / 2];
  const direction = directionOf(report, edge);
  const words = `${direction === "up" ? "▲" : "▼"} ${count(edge.casts)}`;
  const width = 14 + words.length * 6.5;
  return drawn(
    "g",
    { class: `cast cast-${direction}`, "data-from": edge.from, "data-to": edge.to, transform: `translate(${x} ${y})` },
    drawn("title", {}, castInWords(edge, `${direction} to ${report.rows[edge.to].precision}`)),
    drawn("rect", { x: -width / 2, y: -8, width, height: 16, rx: 8 }),
    drawn("text", { y: 4, "text-anchor": "middle" }, words),
  );
}

function castInWords({ casts, calls }, where) {
  return `${counted(casts, "cast")} ${where}, in ${counted(calls, "call")}`;
}

function isPingPong(finding) {
  return finding.kind === "ping-pong";
}

function isPingPongEdge(report, { from, to }) {
  return report.rows[from].findings.some((finding) => isPingPong(finding) && finding.rows.includes(to));
}

function operationNode(report, row, { x, y }, module, isFirst) {
  const isMarked = row.findings.some(isPingPong);
  const precision = precisionClass(row.precision);
  const cost = costInWords(report, row.cost);
  const place = ending(moduleWithin(row.module, module), lettersBeside(cost));
  const left = -NODE.width / 2;
  return drawn(
    "g",
    {
      class: `node ${precision}${isMarked ? " ping-pong" : ""}`,
      transform: `translate(${x} ${y})`,
      "data-index": row.index,
      tabindex: isFirst ? 0 : -1,
      role: "button",
      "aria-label": nodeInWords(row, isMarked),
    },
    drawn("rect", { class: "body", x: left, width: NODE.width, height: NODE.height, rx: 4 }),
    drawn("rect", { class: "band", x: left + 1, y: 1, width: 8, height: NODE.height - 2, rx: 3 }),
    drawn("rect", { class: "band-pattern", x: left + 1, y: 1, width: 8, height: NODE.height - 2, rx: 3 }),
    drawn("text", { class: "operation", x: left + 16, y: 16 }, beginning(row.operation, lettersBeside(row.precision))),
    drawn("text", { class: "precision", x: -left - 8, y: 16, "text-anchor": "end" }, row.precision),
    drawn("text", { class: "quiet", x: left + 16, y: 30 }, place),
    drawn("text", { class: "quiet", x: -left - 8, y: 30, "text-anchor": "end" }, cost),
    isMarked ? pingPongMark(-left) : null,
  );
}

function nodeInWords(row, isMarked) {
  const parts = [row.operation, row.precision, row.module, counted(row.calls, "call")];
  return [...parts.filter((part) => part !== null), ...(isMarked ? ["part of a ping-pong"] : [])].join(", ");
}

function pingPongMark(right) {
  return drawn(
    "g",
    { class: "mark", transform: `translate(${right - 2} 1)` },
    drawn("title", {}, "part of a ping-pong"),
    drawn("circle", { r: 9 }),
    drawn("text", { y: 4, "text-anchor": "middle" }, "⇄"),
  );
}

/** Returns a module's path relative to the chosen one, since all paths have that beginning. */
function moduleWithin(path, module) {
  if (path === null) return "";
  if (module !== null && path.startsWith(`${module}.`)) return path.slice(module.length + 1);
  return path.slice(path.lastIndexOf(".") + 1);
}

/** Returns the number of letters that fit into a node's line beside a word at its end. */
function lettersBeside(word) {
  return Math.floor((NODE.width - 32) / 6.6) - word.length;
}

function beginning(text, most) {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}

function ending(text, most) {
  return text.length <= most ? text : `…${text.slice(1 - most)}`;
}
