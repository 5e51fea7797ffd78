// The details of one row.

function detailsOf(report, row) {
  const pairs = [
    ["module", row.module],
    ["place", row.file === null ? null : `${row.file}:${row.line}`],
    ["function", row.function],
    ["reason", `${row.why} (${row.reason})`],
    ["rule", row.rule],
    ["phase", row.phase],
    ["calls", count(row.calls)],
    ["casts", row.casts === 0 ? "none" : `${count(row.casts)}: ${castsInWords(row)}, ${size(row.bytes)}`],
    ["casts of small weights", row.small === 0 ? null : count(row.small)],
    ["cached casts used", row.hits === 0 ? null : count(row.hits)],
    ["time", row.seconds === null ? null : duration(row.seconds) + shareOfTime(report, row)],
    ["time of casts", row.cast_seconds === null ? null : duration(row.cast_seconds)],
    ...row.findings.map((finding) => [finding.kind, withCode(finding.text)]),
  ];
  const items = pairs
    .filter(([, value]) => value !== null)
    .map(([name, value]) => described(name, ...[value].flat()));
  return [element("h3", {}, row.operation, " ", precisionBadge(row)), element("dl", {}, ...items)];
}

function castsInWords(row) {
  return `${count(row.casts_down)} down, ${count(row.casts_up)} up`;
}

function shareOfTime(report, row) {
  return report.totals.seconds > 0 ? ` (${percent(row.seconds / report.totals.seconds)})` : "";
}

function precisionBadge(row) {
  return element("span", { class: `badge ${precisionClass(row.precision)}` }, row.ran_in ?? row.precision);
}
