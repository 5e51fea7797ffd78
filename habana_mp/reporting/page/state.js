// The state that the user has chosen, in one place. Views listen, and redraw what a change affects.

function makeStore(initial) {
  const listeners = [];
  let state = Object.freeze(initial);
  return {
    get: () => state,
    set(change) {
      const before = state;
      state = Object.freeze({ ...state, ...change });
      for (const listener of listeners) listener(state, before);
    },
    /** Calls `listener` when one of these parts of the state has changed. */
    listen(parts, listener) {
      listeners.push((now, before) => {
        if (parts.some((part) => now[part] !== before[part])) listener(now);
      });
    },
  };
}

function firstState(report) {
  return {
    module: null, // the path of the chosen module
    finding: null, // the index of the chosen finding
    row: null, // the index of the chosen row
    text: "",
    precisions: [], // none means all
    reason: null,
    phase: null,
    sort: report.timed ? "seconds" : "calls",
    ascending: false,
    ...chosenInAddress(report),
  };
}

const NO_FILTERS = { text: "", precisions: [], reason: null, phase: null };

/** Chooses a finding: shows only its rows, in the innermost module that has all of them. */
function chooseFinding(report, store, index) {
  const rows = report.findings[index].rows.map((row) => report.rows[row]);
  store.set({ ...NO_FILTERS, finding: index, module: commonModule(report, rows), row: null });
}

// ---- the part of the state that the address keeps ------------------------------------------------------------------

function chosenInAddress(report) {
  const address = new URLSearchParams(location.hash.slice(1));
  const module = address.get("module");
  const finding = Number.parseInt(address.get("finding"), 10);
  return {
    module: report.nodes.has(module) ? module : null,
    finding: finding in report.findings ? finding : null,
  };
}

function keepInAddress(store) {
  store.listen(["module", "finding"], ({ module, finding }) => {
    const address = new URLSearchParams();
    if (module !== null) address.set("module", module);
    if (finding !== null) address.set("finding", finding);
    history.replaceState(null, "", `#${address}`);
  });
}
