// Long lists: the document has only the visible lines.

/** Additional lines beyond the edges, so that fast scrolling shows no gap. */
const BEYOND = 12;

/**
 * Shows lines in `body`, all `height` pixels high, of which `viewport` shows a part. `line(item, index)` creates one.
 * A head covers `above` pixels of the viewport.
 */
function makeWindow(viewport, body, height, above, line) {
  const gaps = ["", ""].map(() => element(body.tagName === "TBODY" ? "tr" : "div", { class: "gap", role: "none" }));
  let items = [];
  let drawnRange = null;

  function range() {
    if (state.printing) return [0, items.length];
    const first = Math.floor(viewport.scrollTop / height) - BEYOND;
    const last = Math.ceil((viewport.scrollTop + viewport.clientHeight) / height) + BEYOND;
    return [Math.max(0, Math.min(first, items.length)), Math.min(items.length, last)];
  }

  function draw() {
    const [first, last] = range();
    body.replaceChildren(gaps[0], ...items.slice(first, last).map((item, i) => line(item, first + i)), gaps[1]);
    gaps[0].style.height = `${first * height}px`;
    gaps[1].style.height = `${(items.length - last) * height}px`;
    drawnRange = `${[first, last]}`;
  }

  function drawIfMoved() {
    if (`${range()}` !== drawnRange) draw();
  }

  viewport.addEventListener("scroll", () => requestAnimationFrame(drawIfMoved), { passive: true });
  new ResizeObserver(drawIfMoved).observe(viewport);

  return {
    fill(newItems) {
      items = newItems;
      draw();
    },
    show(index) {
      const top = index * height;
      const lowest = top + height + above - viewport.clientHeight;
      viewport.scrollTop = Math.min(top, Math.max(lowest, viewport.scrollTop));
      drawIfMoved();
    },
    /** Returns the line that a key moves to, or null for a key that does not move. */
    movedTo(key, from) {
      const page = Math.max(1, Math.floor((viewport.clientHeight - above) / height) - 1);
      const all = items.length;
      const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -all, End: all };
      if (!(key in steps) || all === 0) return null;
      return Math.max(0, Math.min(all - 1, from + steps[key]));
    },
  };
}
