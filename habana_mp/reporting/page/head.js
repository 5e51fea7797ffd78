// The head of the page: the findings in words, the origin of the report, its totals.

function showHead(report) {
  byId("script").textContent = fileName(report.environment.script ?? "habana_mp");
  byId("environment").append(...environmentInWords(report).map((part) => element("span", {}, part)));
  byId("words").append(...report.words.map((line) => element("p", {}, ...withCode(line))));
  byId("precisions").append(...precisionShares(report));
  byId("totals").append(...totals(report).map(([name, value]) => described(name, value)));
  byId("weights").textContent = weightsInWords(report.weights);
}

function fileName(path) {
  return path.slice(path.lastIndexOf("/") + 1);
}

function environmentInWords({ environment, configuration, ranks, seconds }) {
  const parts = [
    ...["habana_mp", "torch", "python"].map((name) => named(name === "python" ? "Python" : name, environment[name])),
    environment.processor,
    named("device", environment.device),
    ...configurationInWords(configuration),
    ranks > 1 ? `sums of ${ranks} ranks` : null,
    seconds === null ? null : `${duration(seconds)} watched`,
  ];
  return parts.filter((part) => Boolean(part));
}

function named(name, value) {
  return value === null || value === undefined ? null : `${name} ${value}`;
}

function configurationInWords(configuration) {
  if (configuration === null) return ["not converted"];
  const { opt_level: level, lower, preset, within, bf16_list: lowerList, fp32_list: fp32List } = configuration;
  return [
    [level, lower].filter(Boolean).join(", "),
    named("preset", preset),
    named("within", within),
    ...[lowerList, fp32List].map((path) => (path ? `list ${fileName(path)}` : null)),
  ];
}

function precisionShares(report) {
  const costs = costsByPrecision(report);
  const all = sum(Object.values(costs), (cost) => cost);
  const unit = report.timed ? "of the time" : "of the calls";
  const legend = PRECISIONS.filter((precision) => costs[precision] > 0).map((precision) =>
    element(
      "span",
      {},
      element("i", { class: `swatch ${precisionClass(precision)}` }),
      element("b", {}, percent(costs[precision] / all)),
      ` ${precision} `,
      element("small", {}, counted(report.totals.by_precision[precision]?.calls ?? 0, "call")),
    ),
  );
  const label = `Precisions by share ${unit}`;
  const bar = element("div", { class: "bar-of-precisions", role: "img", "aria-label": label }, stackedBar(costs));
  return [bar, element("p", { class: "legend" }, ...legend, element("small", { class: "unit" }, unit))];
}

function costsByPrecision({ totals: { by_precision: shares }, timed }) {
  const costs = Object.entries(shares).map(([precision, of]) => [precision, timed ? of.seconds ?? 0 : of.calls]);
  return Object.fromEntries(costs);
}

function totals({ totals: all }) {
  const shown = [
    ["calls", count(all.calls)],
    ["casts", count(all.casts)],
    ["cast data", size(all.bytes)],
    ["cached casts used", count(all.hits)],
    ["time of operations", all.seconds === null ? null : duration(all.seconds)],
    ["time of casts", all.cast_seconds === null ? null : duration(all.cast_seconds)],
  ];
  return shown.filter(([, value]) => value !== null);
}

function weightsInWords(weights) {
  if (!weights || weights.weights + weights.hits + weights.refused + weights.products === 0) return "";
  const again = weights.refreshed_bytes > 0 ? ` (${size(weights.refreshed_bytes)})` : "";
  const reasons = Object.entries(weights.reasons).map(([reason, times]) => `${reason}: ${count(times)}`);
  return (
    `Casts of ${counted(weights.weights, "weight")} are cached (${size(weights.bytes)}), ` +
    `used ${counted(weights.hits, "time")}, refreshed ` +
    `${counted(weights.refreshes, "time")}${again}, not cached ${counted(weights.refused, "time")}` +
    (reasons.length > 0 ? ` (${reasons.join(", ")}).` : ".") +
    (weights.products > 0 ? ` habana_mp's kernels computed ${counted(weights.products, "product")} with weights.` : "")
  );
}

// ---- light and dark ------------------------------------------------------------------------------------------------

function offerThemes() {
  const button = byId("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const name = () => (button.textContent = isDark() ? "Light" : "Dark");
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    name();
  });
  system.addEventListener("change", name);
  name();
}
