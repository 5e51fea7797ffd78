// Creates elements. Text is inserted as text, never as markup.

/** Returns an HTML element: `on...` properties are listeners, null is left out, others are attributes. */
function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (value !== null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

function byId(id) {
  return document.getElementById(id);
}

/** Returns the index of the line around a clicked element, or null. */
function clickedIndex(event) {
  const line = event.target.closest("[data-index]");
  return line === null ? null : Number(line.dataset.index);
}

/** Returns a sign of a precision in its colour. An unknown precision looks like calls that were left alone. */
function swatch(precision) {
  return element("i", { class: `swatch is-${PRECISIONS.includes(precision) ? precision : "unchanged"}` });
}

/** Returns the entries of a description list, without those that have no value. */
function described(pairs) {
  return pairs
    .filter(([, value]) => value !== null)
    .map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, ...[value].flat())));
}

/** Returns text of the report with the names between backticks as code. */
function withCode(words) {
  return words.split("`").map((part, i) => (i % 2 === 1 ? element("code", {}, part) : part));
}

/** Returns a text that is cut at its beginning, not at its end, if the room is short. */
function endOf(text) {
  return element("span", { class: "end" }, element("bdi", {}, text));
}

/** Returns a bar with the parts of a whole, by precision, side by side. */
function stackedBar(mix) {
  const bar = element("span", { class: "stacked" });
  const whole = sum(Object.values(mix), (part) => part);
  for (const precision of PRECISIONS.filter((one) => mix[one] > 0)) {
    bar.append(swatch(precision));
    bar.lastChild.style.flexGrow = (100 * mix[precision]) / whole;
  }
  return bar;
}
