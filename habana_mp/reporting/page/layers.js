// Computes a layered drawing of a graph: the layers, the order in each layer, and the routes of edges.

/** The room between layers holds the symbols of casts. */
const NODE = { width: 184, height: 38 };
const LAYER_GAP = 40;
const SIDE_GAP = 20;
/** The room that an edge takes on its way past a node. */
const LANE = 10;
const SWEEPS = 8;

/**
 * Returns the positions of `rows` and of the `edges` between them:
 * `{places: Map(row index -> {x, y}), routes, width, height}`. A route is `{edge, points}`, from the lower side of one
 * node to the upper side of another.
 *
 * Results flow downwards, from a row to a row whose first call was later. An edge to an earlier row (as in the second
 * round of a loop) does not affect the positions. Unconnected parts are side by side, single rows in one column.
 */
function layered(rows, edges) {
  const inOrder = [...rows].sort((one, other) => one.order - other.order);
  const vertices = new Map(inOrder.map((row) => [row.index, vertex(row)]));
  const links = edges
    .map((edge) => ({ edge, from: vertices.get(edge.from), to: vertices.get(edge.to) }))
    .filter(({ from, to }) => from !== to);
  for (const { from, to } of links.filter(leadsDown)) {
    from.below.push(to);
    to.above.push(from);
  }
  const drawing = { places: new Map(), routes: [], width: 0, height: 0 };
  for (const part of connectedParts([...vertices.values()])) addPart(drawing, part, links);
  addEdgesUpwards(drawing, links);
  return drawing;
}

function vertex(row) {
  return { row, above: [], below: [], layer: 0, x: 0, width: NODE.width, part: null };
}

/** Returns a place in a layer that an edge passes through. */
function lane(layer) {
  return { row: null, above: [], below: [], layer, x: 0, width: LANE, part: null };
}

function leadsDown({ from, to }) {
  return from.row.order < to.row.order;
}

/** Returns the groups of connected vertices. Vertices without edges form one group, one above the other. */
function connectedParts(vertices) {
  const parts = [];
  for (const start of vertices) {
    if (start.part !== null || isSingle(start)) continue;
    const part = { vertices: [], links: [] };
    const waiting = [start];
    start.part = part;
    while (waiting.length > 0) {
      for (const next of neighbours(waiting.pop())) {
        if (next.part !== null) continue;
        next.part = part;
        waiting.push(next);
      }
    }
    part.vertices = vertices.filter((one) => one.part === part);
    giveLayers(part.vertices);
    parts.push(part);
  }
  const singles = vertices.filter(isSingle);
  singles.forEach((single, i) => (single.layer = i));
  return singles.length > 0 ? [...parts, { vertices: singles }] : parts;
}

function isSingle(one) {
  return one.above.length + one.below.length === 0;
}

function neighbours(one) {
  return [...one.above, ...one.below];
}

/** Puts each vertex right below the lowest one above it; a vertex with none above it right above its first reader. */
function giveLayers(vertices) {
  for (const one of vertices) one.layer = Math.max(-1, ...one.above.map((other) => other.layer)) + 1;
  for (const one of [...vertices].reverse()) {
    if (one.above.length === 0) one.layer = Math.min(...one.below.map((other) => other.layer)) - 1;
  }
}

function addPart(drawing, { vertices }, links) {
  const inside = new Set(vertices);
  const paths = links.filter((link) => inside.has(link.from) && leadsDown(link)).map(pathOf);
  const layers = inLayers([...vertices, ...paths.flatMap((path) => path.vertices.slice(1, -1))]);
  join(paths, vertices);
  for (let sweep = 0; sweep < SWEEPS; sweep++) orderLayers(layers, sweep % 2 === 0);
  for (let sweep = 0; sweep < SWEEPS; sweep++) placeLayers(layers, sweep % 2 === 0);
  addTo(drawing, layers, paths);
}

/** Returns the vertices that an edge passes: its ends, and a lane in each layer in between. */
function pathOf({ edge, from, to }) {
  const between = Array.from({ length: to.layer - from.layer - 1 }, (_, i) => lane(from.layer + 1 + i));
  return { edge, vertices: [from, ...between, to] };
}

/** Replaces the neighbours of vertices by their neighbours in adjacent layers. */
function join(paths, vertices) {
  for (const one of vertices) Object.assign(one, { above: [], below: [] });
  for (const { vertices: passed } of paths) {
    for (let i = 1; i < passed.length; i++) {
      passed[i - 1].below.push(passed[i]);
      passed[i].above.push(passed[i - 1]);
    }
  }
}

function inLayers(vertices) {
  const layers = Array.from({ length: Math.max(...vertices.map((one) => one.layer)) + 1 }, () => []);
  for (const one of vertices) layers[one.layer].push(one);
  layers.forEach(numbered);
  return layers;
}

function numbered(layer) {
  layer.forEach((one, i) => (one.rank = i));
}

function orderLayers(layers, downwards) {
  for (const layer of downwards ? layers : [...layers].reverse()) {
    const wish = new Map(layer.map((one) => [one, mean(downwards ? one.above : one.below, "rank") ?? one.rank]));
    layer.sort((one, other) => wish.get(one) - wish.get(other));
    numbered(layer);
  }
}

function placeLayers(layers, downwards) {
  for (const layer of downwards ? layers : [...layers].reverse()) {
    const wishes = layer.map((one) => mean(downwards ? one.above : one.below, "x") ?? one.x);
    apart(layer, wishes);
  }
}

function mean(vertices, property) {
  return vertices.length === 0 ? null : sum(vertices, (one) => one[property]) / vertices.length;
}

/**
 * Places a layer as near to the wishes as its order and the room allow (least squares). Once the room to the left of
 * each vertex is subtracted, positions must only not decrease. Neighbours that would are pooled, and get their mean.
 */
function apart(layer, wishes) {
  let room = 0;
  const offsets = layer.map((one, i) => {
    if (i > 0) room += (layer[i - 1].width + one.width) / 2 + SIDE_GAP;
    return room;
  });
  const pools = [];
  wishes.forEach((wish, i) => {
    let pool = { total: wish - offsets[i], size: 1 };
    while (pools.length > 0 && pools.at(-1).total / pools.at(-1).size > pool.total / pool.size) {
      const left = pools.pop();
      pool = { total: pool.total + left.total, size: pool.size + left.size };
    }
    pools.push(pool);
  });
  const positions = pools.flatMap((pool) => Array(pool.size).fill(pool.total / pool.size));
  layer.forEach((one, i) => (one.x = positions[i] + offsets[i]));
}

/** Adds a finished part to the right of the drawing. */
function addTo(drawing, layers, paths) {
  const all = layers.flat();
  const left = Math.min(...all.map((one) => one.x - one.width / 2));
  const right = Math.max(...all.map((one) => one.x + one.width / 2));
  const shift = drawing.width + SIDE_GAP - left;
  for (const one of all) {
    one.x += shift;
    if (one.row !== null) drawing.places.set(one.row.index, { x: one.x, y: topOf(one) });
  }
  for (const { edge, vertices } of paths) drawing.routes.push({ edge, points: vertices.flatMap(passing) });
  drawing.width = right + shift + SIDE_GAP;
  drawing.height = Math.max(drawing.height, layers.length * (NODE.height + LAYER_GAP) + LAYER_GAP);
}

function topOf(one) {
  return LAYER_GAP + one.layer * (NODE.height + LAYER_GAP);
}

/** Returns the points where an edge leaves or enters a node, or passes through its lane. */
function passing(one, i, { length }) {
  const upper = { x: one.x, y: topOf(one) };
  const lower = { x: one.x, y: topOf(one) + NODE.height };
  if (i === 0) return [lower];
  return i === length - 1 ? [upper] : [upper, lower];
}

/** Adds the edges to earlier rows. They run beside the nodes, on the right. */
function addEdgesUpwards(drawing, links) {
  const upwards = links.filter((link) => !leadsDown(link));
  if (upwards.length > 0) drawing.width += 2 * SIDE_GAP;
  for (const { edge, from, to } of upwards) {
    const [start, end] = [drawing.places.get(from.row.index), drawing.places.get(to.row.index)];
    const side = NODE.width / 2;
    drawing.routes.push({
      edge,
      upwards: true,
      points: [
        { x: start.x + side, y: start.y + NODE.height / 2 },
        { x: end.x + side, y: end.y + NODE.height / 2 },
      ],
    });
  }
}
