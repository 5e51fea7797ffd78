// Long lists: the document has only the visible lines.

/** Additional lines beyond the edges, so that fast scrolling shows no gap. */
const BEYOND = 12;

/**
 * Shows the lines of `body` in `viewport`, all `height` pixels high. `line(item, index)` creates a line, `gap()` the
 * element that takes the room of missing lines. A head covers `above` pixels of the viewport.
 */
function makeWindow({ viewport, body, height, above = 0, line, gap }) {
  let items = [];
  let everything = false;
  let drawnRange = null;

  function range() {
    if (everything) return [0, items.length];
    const first = Math.floor(viewport.scrollTop / height) - BEYOND;
    const last = Math.ceil((viewport.scrollTop + viewport.clientHeight) / height) + BEYOND;
    return [Math.max(0, Math.min(first, items.length)), Math.min(items.length, last)];
  }

  function draw() {
    const [first, last] = range();
    const lines = items.slice(first, last).map((item, i) => line(item, first + i));
    body.replaceChildren(gapOf(first), ...lines, gapOf(items.length - last));
    drawnRange = `${first} ${last}`;
  }

  function gapOf(lines) {
    const made = gap();
    made.style.height = `${lines * height}px`;
    made.hidden = lines === 0;
    return made;
  }

  function drawIfMoved() {
    if (range().join(" ") !== drawnRange) draw();
  }

  function show(index) {
    const top = index * height;
    const lowest = top + height + above - viewport.clientHeight;
    if (top < viewport.scrollTop) viewport.scrollTop = top;
    else if (viewport.scrollTop < lowest) viewport.scrollTop = lowest;
    drawIfMoved();
  }

  viewport.addEventListener("scroll", () => requestAnimationFrame(drawIfMoved), { passive: true });
  new ResizeObserver(drawIfMoved).observe(viewport);
  whenPrinting((printing) => {
    everything = printing;
    draw();
  });

  return {
    draw,
    show,
    fill(newItems) {
      items = newItems;
      draw();
    },
    /** Returns the number of lines of a page. */
    page: () => Math.max(1, Math.floor((viewport.clientHeight - above) / height) - 1),
  };
}

/** Calls `change` with true before the page is printed, and with false afterwards. */
function whenPrinting(change) {
  let told = false;
  const tell = (printing) => {
    if (printing === told) return;
    told = printing;
    change(printing);
  };
  const media = matchMedia("print");
  media.addEventListener("change", () => tell(media.matches));
  addEventListener("beforeprint", () => tell(true));
  addEventListener("afterprint", () => tell(false));
}

/** Returns the line that a key moves to in a list of `length` lines, or null for a key that does not move. */
function movedTo(key, from, length, page) {
  const targets = {
    ArrowDown: from + 1,
    ArrowUp: from - 1,
    PageDown: from + page,
    PageUp: from - page,
    Home: 0,
    End: length,
  };
  const to = targets[key];
  return to === undefined || length === 0 ? null : Math.max(0, Math.min(length - 1, to));
}
