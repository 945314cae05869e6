// Elements and numbers. Whatever a user may have named goes into the page as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function put(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child instanceof Node || (typeof child === "string" && child)),
  );
  return element;
}

/** An HTML element; `text` is its text, `onclick` and the like are listeners, everything else is an attribute. */
function h(name, properties, ...children) {
  return put(document.createElement(name), properties, children);
}

/** Likewise, an element of SVG. */
function s(name, properties, ...children) {
  return put(document.createElementNS(SVG, name), properties, children);
}

const NOTHING = "\u2013";
const MINUS = "\u2212";

/** With so many decimals and a proper minus. */
function fixed(value, decimals) {
  if (value === null || value === undefined) return NOTHING;
  const text = value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  return text.replace("-", MINUS);
}

/** With about so many significant digits, grouped by thousands. */
function short(value, digits = 3) {
  if (value === null || value === undefined) return NOTHING;
  if (value === 0) return "0";
  const size = Math.floor(Math.log10(Math.abs(value)));
  if (size < -4) return value.toExponential(digits - 1).replace(/-/g, MINUS);
  const decimals = Math.max(0, digits - 1 - size);
  return value.toLocaleString("en", { maximumFractionDigits: decimals }).replace("-", MINUS);
}

/** From here on a value is written with an exponent. */
const HUGE = 1e7;

function exponent(value, digits) {
  if (value === 0) return "0";
  const [mantissa, power] = value.toExponential(digits - 1).split("e");
  return `${Number(mantissa)}e${Number(power)}`.replace(/-/g, MINUS);
}

/** A loss or a metric with about so many digits: 2.104, 51,941, 2.698e9. */
function compact(value, digits = 4) {
  const huge = Number.isFinite(value) && Math.abs(value) >= HUGE;
  return huge ? exponent(value, 4) : short(value, digits);
}

/** The numbers of an axis, all in the same form: with an exponent where one of them is a million or more. */
function tickLabels(ticks) {
  const most = Math.max(0, ...ticks.map(Math.abs));
  if (most < 1e6) return ticks.map((tick) => short(tick, 4));
  const labels = (digits) => ticks.map((tick) => exponent(tick, digits));
  const digits = [4, 5, 6, 7, 8].find((each) => new Set(labels(each)).size === ticks.length);
  return labels(digits ?? 9);
}

function signed(value, decimals) {
  return value > 0 ? `+${fixed(value, decimals)}` : fixed(value, decimals);
}

function percent(value, decimals = 1) {
  return value === null || value === undefined ? NOTHING : `${fixed(100 * value, decimals)}\u00a0%`;
}

const TIMES = [
  [2 * 86400, 86400, "d"],
  [2 * 3600, 3600, "h"],
  [300, 60, "min"],
  [0, 1, "s"],
];
const SIZES = [
  [1e12, 1e12, "TB"],
  [1e9, 1e9, "GB"],
  [1e6, 1e6, "MB"],
  [1e3, 1e3, "kB"],
  [0, 1, "B"],
];
const COUNTS = [[0, 1, ""]];

/** The unit in which a scale that ends at `most` is told: [divisor, name]. */
function unit(units, most) {
  const [, divisor, name] = units.find(([least]) => most >= least);
  return [divisor, name];
}

/** A quantity with its own unit. */
function quantity(units, value) {
  if (value === null || value === undefined) return NOTHING;
  const [divisor, name] = unit(units, Math.abs(value));
  return name ? `${short(value / divisor)}\u00a0${name}` : short(value, 4);
}

const seconds = (value) => quantity(TIMES, value);
const bytes = (value) => quantity(SIZES, value);
const count = (value) => quantity(COUNTS, value);

/** A mean and half of its interval; without an interval, the mean alone. */
function interval(found, format) {
  if (!found) return NOTHING;
  return found.low === null
    ? format(found.mean)
    : `${format(found.mean)}\u00a0±\u00a0${format((found.high - found.low) / 2)}`;
}

/** The same of a quantity in a column: the smallest mean there says in which unit. */
function quantityInterval(found, units, column) {
  if (!found) return NOTHING;
  const [divisor, name] = unit(units, Math.min(...column.filter(Boolean).map((each) => Math.abs(each.mean))));
  const told = interval(found, asPrecise(found, divisor));
  return name ? `${told}\u00a0${name}` : told;
}

/** Writes numbers as precisely as they are known: to two digits of half of the interval. */
function asPrecise(found, divisor) {
  const half = found.low === null ? 0 : (found.high - found.low) / 2 / divisor;
  if (!(half > 0)) return (value) => short(value / divisor);
  const decimals = Math.max(0, Math.min(3, 1 - Math.floor(Math.log10(half))));
  return (value) => fixed(value / divisor, decimals);
}

function plural(number, word) {
  return `${short(number, 6)} ${word}${number === 1 ? "" : "s"}`;
}

function capital(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}`;
}

/** What the variants are: settings, where all are called by some, as in a sweep. */
function word(digest) {
  return digest.variants.every((each) => /^[a-z_.]+=/.test(each.name)) ? "setting" : "method";
}

/** What times are: those of simulated devices, of real machines, or of both. */
function clock(digest = current) {
  return { virtual: "virtual time", wall: "wall time", both: "time" }[digest.clock];
}

/** What a client is called; on real machines, a site. */
function who(otherwise = "client") {
  return current.clock === "wall" ? "site" : otherwise;
}

/** A name that fits into so many pixels. */
function clipped(name, width) {
  const most = Math.max(1, Math.floor(width / 6.5));
  return name.length <= most ? name : `${name.slice(0, Math.max(1, most - 1))}\u2026`;
}

function listed(words) {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}

/** A metric's words, with acronyms in capitals. */
function spelled(words) {
  return words.replace(/\b(rmse|mae|mse|mape|r2|auroc|auprc|f1)\b/g, (each) => each.toUpperCase());
}

/** The same at the beginning of a sentence or of a column. */
function titled(words) {
  return capital(spelled(words));
}

/** Writes the numbers of a table with equally many decimals: four digits for the largest number. */
function alike(values) {
  const most = Math.max(0, ...values.filter((each) => Number.isFinite(each)).map(Math.abs));
  if (most >= HUGE) return (value) => compact(value);
  const decimals = most > 0 ? Math.max(0, Math.min(8, 3 - Math.floor(Math.log10(most)))) : 0;
  return (value) => fixed(value, decimals);
}

/** What runs are compared by, and the ways in which its values are written; only shares are in percent. */
function metric(digest) {
  const { name, better, share } = digest.measure.judged;
  const words = spelled(digest.measure.judged.words);
  const arrow = name === "accuracy" ? "" : better === "lower" ? " \u2193" : " \u2191";
  return {
    words,
    arrow,
    share,
    lower: better === "lower",
    factor: share ? 100 : 1,
    unit: share ? ", %" : "",
    head: `${titled(words)}${share ? ", %" : ""}${arrow}`,
    axis: `test ${words}${share ? " (%)" : ""}`,
    better: better === "lower" ? "Lower is better." : "",
    told: (value, decimals = 2) => (share ? percent(value, decimals) : compact(value)),
    goal: (value) => (share ? `${short(100 * value)}\u00a0%` : compact(value)),
  };
}
