// Formats numbers for readers.

const COUNTS = new Intl.NumberFormat("en-US");
const THREE_DECIMALS = new Intl.NumberFormat("en-US", { minimumFractionDigits: 3, maximumFractionDigits: 3 });

function count(number) {
  return COUNTS.format(number);
}

/** Returns "3 casts", "1 cast". */
function counted(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

/** Returns seconds in a suitable unit. */
function duration(seconds) {
  if (seconds >= 100) return `${count(Math.round(seconds))} s`;
  if (seconds >= 1) return `${seconds.toPrecision(3)} s`;
  if (seconds >= 1e-3) return `${(seconds * 1e3).toPrecision(3)} ms`;
  return seconds === 0 ? "0 s" : `${(seconds * 1e6).toPrecision(3)} µs`;
}

function milliseconds(seconds) {
  return THREE_DECIMALS.format(seconds * 1e3);
}

/** Returns millions of bytes, as in the printed report. */
function megabytes(bytes) {
  return THREE_DECIMALS.format(bytes / 1e6);
}

/** Returns bytes in a suitable unit. */
function size(bytes) {
  if (bytes >= 1e9) return `${(bytes / 1e9).toPrecision(3)} GB`;
  if (bytes >= 1e6) return `${(bytes / 1e6).toPrecision(3)} MB`;
  return `${count(Math.round(bytes / 1e3))} kB`;
}

function sum(items, value) {
  return items.reduce((total, item) => total + value(item), 0);
}

/** Returns the greatest value, or 0. (A spread into Math.max has a limit.) */
function greatest(items, value) {
  return items.reduce((most, item) => Math.max(most, value(item)), 0);
}
