// Findings: choosing one shows its rows; choosing it again shows all rows. The lines that mend one can be copied.

function showFindings() {
  byId("findings").hidden = report.findings.length === 0;
  byId("findings-count").textContent = count(report.findings.length);
  const buttons = report.findings.map(findingButton);
  const copiers = report.findings.map((finding) => copyButton(Object.keys(finding.rule ?? {})));
  byId("findings-list").append(...buttons.map((button, index) => element("li", {}, button, copiers[index])));
  views.push(() => buttons.forEach((button, index) => button.setAttribute("aria-pressed", index === state.finding)));
}

function findingButton(finding, index) {
  const { kind, text, saves, rows } = finding;
  const worth = saves === null ? counted(rows.length, "operation") : `saves ${duration(saves)}`;
  return element(
    "button",
    { type: "button", class: "finding", onclick: () => chooseFinding(index) },
    isPingPong(finding)
      ? element("span", { class: "kind ping-pong" }, `⇄ ${kind}`)
      : element("span", { class: "kind" }, kind),
    element("span", { class: "text" }, ...withCode(text)),
    element("span", { class: "saves" }, worth),
  );
}

/** Shows only the rows of a finding, in the innermost module that has all of them. */
function chooseFinding(index) {
  if (state.finding === index) return change({ finding: null, module: null });
  const module = commonModule(report.findings[index].rows.map((row) => report.rows[row]));
  change({ finding: index, module, row: null, text: "", precisions: [], reason: null, phase: null });
}

/** Returns a button that copies lines of a list, or null if there are none. */
function copyButton(lines) {
  if (lines.length === 0) return null;
  const label = lines.length === 1 ? "Copy line" : "Copy lines";
  const copy = async () => {
    const copied = navigator.clipboard?.writeText(`${lines.join("\n")}\n`) ?? Promise.reject();
    button.textContent = await copied.then(() => "Copied", () => "Not copied");
    setTimeout(() => (button.textContent = label), 2000);
  };
  const button = element("button", { type: "button", class: "copy", title: lines.join("\n"), onclick: copy }, label);
  return button;
}

function isPingPong(finding) {
  return finding.kind === "ping-pong";
}
