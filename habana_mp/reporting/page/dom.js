// Creates elements. Text is inserted as text, never as markup.

/** Returns an HTML element: `on...` properties are listeners, null and false are left out, others are attributes. */
function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
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

/** Returns the index of the row around a clicked element, or null. */
function clickedIndex(event) {
  const row = event.target.closest("[data-index]");
  return row === null ? null : Number(row.dataset.index);
}

/** Returns the class of a precision. An unknown precision looks like calls that were left alone. */
function precisionClass(precision) {
  return ["bf16", "fp16", "fp32"].includes(precision) ? `is-${precision}` : "is-unchanged";
}

/** Returns an entry of a description list. */
function described(name, ...value) {
  return element("div", {}, element("dt", {}, name), element("dd", {}, ...value));
}

/** Returns text of the report with the names between backticks as code. */
function withCode(words) {
  return words.split("`").map((part, i) => (i % 2 === 1 ? element("code", {}, part) : part));
}

/** Returns a bar with the parts of a whole, by precision, side by side. */
function stackedBar(mix) {
  const whole = sum(Object.values(mix), (part) => part);
  const parts = PRECISIONS.filter((precision) => mix[precision] > 0).map((precision) => {
    const part = element("span", { class: precisionClass(precision) });
    part.style.flexGrow = (100 * mix[precision]) / whole;
    return part;
  });
  return element("span", { class: "stacked" }, ...parts);
}
