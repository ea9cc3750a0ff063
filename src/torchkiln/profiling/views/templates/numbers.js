// The same as _numbers.py; a test compares the two.
const UNKNOWN = "\u2013";
const grouped = (value, digits) => value.toLocaleString("en-US", {minimumFractionDigits: digits, maximumFractionDigits: digits});
function plainUs(us) {
  if (us === null) return UNKNOWN;
  if (us !== 0 && Math.abs(us) < 0.05) return "<0.1";
  return grouped(us, 1);
}
function formatShare(part, whole) {
  if (!(whole > 0)) return UNKNOWN;
  const share = 100 * part / whole;
  return share > 0 && share < 0.05 ? "<0.1 %" : share.toFixed(1) + " %";
}
function formatRate(rate) {
  if (rate === null || rate === 0) return UNKNOWN;
  return rate < 0.05 ? "<0.1" : grouped(rate, 1);
}
function formatBytes(size) {
  for (const [unit, factor] of [["GB", 2 ** 30], ["MB", 2 ** 20], ["KB", 2 ** 10]])
    if (Math.abs(size) >= factor) return grouped(size / factor, 2) + " " + unit;
  return grouped(size, 0) + " bytes";
}
const formatCount = value => grouped(value, Number.isInteger(value) ? 0 : 2);
const formatAttained = (attained, bound) => attained === null ? UNKNOWN : Math.round(100 * attained) + "% " + bound;
