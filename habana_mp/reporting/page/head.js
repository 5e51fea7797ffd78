// The head of the page: the findings in words, the origin of the report, its totals.

function showHead() {
  byId("script").textContent = fileName(report.environment.script ?? "habana_mp");
  byId("environment").append(...environmentInWords(report).map((part) => element("span", {}, part)));
  const [first, ...others] = report.words;
  byId("first-words").append(...withCode(first ?? ""));
  byId("words").append(...others.map((line) => element("p", {}, ...withCode(line))));
  showPrecisions(report.totals.by_precision);
  byId("totals").append(...described(totals(report.totals)));
}

function fileName(path) {
  return path.slice(path.lastIndexOf("/") + 1);
}

function environmentInWords({ environment, configuration, ranks, seconds }) {
  const { opt_level: level, lower, preset, within, bf16_list: lowerList, fp32_list: fp32List } = configuration ?? {};
  const named = [
    ["habana_mp", environment.habana_mp],
    ["torch", environment.torch],
    ["Python", environment.python],
    ["", environment.processor],
    ["", configuration === null ? "not converted" : [level, lower].filter(Boolean).join(", ")],
    ["preset", preset],
    ["within", within],
    ["list", lowerList && fileName(lowerList)],
    ["list", fp32List && fileName(fp32List)],
    ["sums of", ranks > 1 && `${ranks} ranks`],
    ["", seconds !== null && `${duration(seconds)} watched`],
  ];
  return named.filter(([, value]) => value).map(([name, value]) => `${name} ${value}`.trim());
}

function showPrecisions(totals) {
  const costs = Object.entries(totals).map(([name, { seconds, calls }]) => [name, report.timed ? seconds ?? 0 : calls]);
  const mix = Object.fromEntries(costs);
  const legend = Object.entries(totals).map(([precision, { seconds, calls }]) => {
    const time = report.timed ? [element("b", {}, duration(seconds ?? 0))] : [];
    return element("span", {}, swatch(precision), ...time, ` ${precision} `, element("small", {}, counted(calls, "call")));
  });
  const label = `Precisions by ${report.timed ? "time" : "calls"}`;
  byId("precisions").append(
    element("div", { class: "bar-of-precisions", role: "img", "aria-label": label }, stackedBar(mix)),
    element("p", { class: "legend" }, ...legend),
  );
}

function totals({ calls, casts, bytes, hits, seconds, cast_seconds: castSeconds }) {
  return [
    ["calls", count(calls)],
    ["casts", count(casts)],
    ["cast data", size(bytes)],
    ["cached casts used", count(hits)],
    ["time of operations", seconds === null ? null : duration(seconds)],
    ["time of casts", castSeconds === null ? null : duration(castSeconds)],
  ];
}
