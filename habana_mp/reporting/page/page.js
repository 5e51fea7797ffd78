// Builds the page. The performance mark `report-shown` shows how long it took.

const report = readReport();

/** What draws a part of the page from the state. */
const views = [];

const address = new URLSearchParams(location.hash.slice(1));
const finding = Number.parseInt(address.get("finding"), 10);

/** What the user has chosen. */
let state = {
  module: report.nodes.has(address.get("module")) ? address.get("module") : null, // its path
  finding: finding in report.findings ? finding : null, // its index
  row: null, // its index
  text: "",
  precisions: [], // none means all
  reason: null,
  phase: null,
  sort: report.timed ? "seconds" : "calls",
  ascending: false,
  printing: false,
};

/** Changes a part of the state, and draws the page from it. The address keeps the module and the finding. */
function change(part) {
  state = { ...state, ...part };
  for (const draw of views) draw();
  const kept = ["module", "finding"].filter((name) => state[name] !== null).map((name) => [name, state[name]]);
  const hash = new URLSearchParams(kept).toString();
  if (hash !== location.hash.slice(1)) history.replaceState(null, "", `#${hash}`);
}

showHead();
showTree();
showFindings();
showFilters();
showTable();
change({});
addEventListener("beforeprint", () => change({ printing: true }));
addEventListener("afterprint", () => change({ printing: false }));
matchMedia("print").addEventListener("change", (event) => change({ printing: event.matches }));
requestAnimationFrame(() => setTimeout(() => performance.mark("report-shown")));
