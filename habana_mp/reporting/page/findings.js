// Findings: choosing one shows its rows; choosing it again shows all rows.

function showFindings(report, store) {
  if (report.findings.length === 0) return;
  byId("findings").hidden = false;
  byId("findings-count").textContent = count(report.findings.length);
  const buttons = report.findings.map((finding, index) => findingButton(report, store, finding, index));
  byId("findings-list").append(...buttons.map((button) => element("li", {}, button)));
  const mark = ({ finding }) =>
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(index === finding)));
  store.listen(["finding"], mark);
  mark(store.get());
}

function findingButton(report, store, finding, index) {
  const choose = () => {
    if (store.get().finding === index) store.set({ finding: null, module: null });
    else chooseFinding(report, store, index);
  };
  return element(
    "button",
    { type: "button", class: "finding", onclick: choose },
    isPingPong(finding)
      ? element("span", { class: "kind ping-pong" }, `⇄ ${finding.kind}`)
      : element("span", { class: "kind" }, finding.kind),
    element("span", { class: "text" }, ...withCode(finding.text)),
    element("span", { class: "saves" }, worthOf(finding)),
  );
}

function worthOf({ saves, rows }) {
  return saves === null ? counted(rows.length, "operation") : `saves ${duration(saves)}`;
}
