// Making elements. Text goes in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element: `on...` properties are listeners, null and false ones are left out, all others are attributes. */
function element(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** The same for SVG. */
function drawn(tag, properties = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

function filled(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

function byId(id) {
  return document.getElementById(id);
}

/** The index that the row around a clicked element shows, or null. */
function clickedIndex(event) {
  const row = event.target.closest("[data-index]");
  return row === null ? null : Number(row.dataset.index);
}

/** A name of the precision as a class: what this page has not heard of looks like what was left alone. */
function precisionClass(precision) {
  return ["bf16", "fp16", "fp32"].includes(precision) ? `is-${precision}` : "is-unchanged";
}

/** An entry of a list of descriptions. */
function described(name, ...value) {
  return element("div", {}, element("dt", {}, name), element("dd", {}, ...value));
}

/** Words of the report, in which names of code stand between backticks. */
function withCode(words) {
  return words.split("`").map((part, i) => (i % 2 === 1 ? element("code", {}, part) : part));
}

/** The parts of a whole by precision, side by side. */
function stackedBar(mix) {
  const whole = sum(Object.values(mix), (part) => part);
  const parts = PRECISIONS.filter((precision) => mix[precision] > 0).map((precision) => {
    const part = element("span", { class: precisionClass(precision) });
    part.style.flexGrow = (100 * mix[precision]) / whole;
    return part;
  });
  return element("span", { class: "stacked" }, ...parts);
}
