// Findings: choosing one shows its rows; choosing it again shows all rows. The lines that mend one can be copied.

function showFindings(report, store) {
  if (report.findings.length === 0) return;
  byId("findings").hidden = false;
  byId("findings-count").textContent = count(report.findings.length);
  const buttons = report.findings.map((finding, index) => findingButton(report, store, finding, index));
  const copiers = report.findings.map((finding) => copyButton(Object.keys(finding.rule ?? {})));
  byId("findings-list").append(...buttons.map((button, index) => element("li", {}, button, copiers[index])));
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

/** Returns a button that copies lines of a list, or null if there are none. */
function copyButton(lines) {
  if (lines.length === 0) return null;
  const label = lines.length === 1 ? "Copy line" : "Copy lines";
  const button = element("button", { type: "button", class: "copy", title: lines.join("\n") }, label);
  button.addEventListener("click", async () => {
    button.textContent = (await copied(`${lines.join("\n")}\n`)) ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = label), 2000);
  });
  return button;
}

/** Puts text on the clipboard. Returns false if the browser does not let a page do so. */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // No clipboard in this context: a selection can still be copied.
    const area = element("textarea", { class: "clipboard" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

function isPingPong(finding) {
  return finding.kind === "ping-pong";
}
