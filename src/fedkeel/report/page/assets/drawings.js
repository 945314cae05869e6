// Drawings of our own, as SVG: histograms, device times, the timeline, and the heat map of labels.

/** Drawings that are on the page now: each is a function that draws anew for the width there is. */
let drawings = [];

function drawing(holder, draw) {
  const redraw = () => {
    const width = Math.floor(holder.clientWidth);
    if (width && width !== redraw.width) holder.replaceChildren(draw((redraw.width = width)));
  };
  drawings.push(redraw);
  redraw();
}

function picture(width, height, label, ...children) {
  return s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, children);
}

function words(x, y, text, more) {
  return s("text", { x, y, text, ...more });
}

/** About so many round numbers from 0 to `most`. */
function ticks(most, about, from = 0) {
  const rough = (most - from) / about;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((n) => n * size >= rough) * size;
  const first = Math.ceil(from / step - 1e-9);
  return Array.from({ length: Math.floor(most / step + 1e-9) - first + 1 }, (_, at) => (first + at) * step);
}

function bottomAxis(scale, values, y, label, width, format) {
  const marks = values.map((value) => [
    s("line", { x1: scale(value), x2: scale(value), y1: 0, y2: y, class: "grid" }),
    words(scale(value), y + 16, format(value), { "text-anchor": "middle", class: "tick" }),
  ]);
  return [...marks, words(width, y + 33, label, { "text-anchor": "end", class: "tick" })];
}

/**
 * A histogram for each row, below each other on one scale. Rows are {variant, bars, refused?, marks: [[x]], title}; bar
 * number i begins at i * step.
 */
function histograms(width, { rows, step, from = 0, most, label, format, what, whole }) {
  const row = 62,
    left = 12;
  const scale = (x) => left + ((x - from) / (most - from)) * (width - 2 * left);
  const shift = whole && step === 1 ? 0.5 : 0;
  const values = ticks(most - 2 * shift, width < 600 ? 5 : 10, from).filter((value) => !whole || Number.isInteger(value));
  const said = (bar) =>
    whole
      ? format(bar * step) + (step > 1 ? ` to ${format((bar + 1) * step - 1)}` : "")
      : `${format(from + bar * step)} to ${format(from + (bar + 1) * step)}`;
  const place = (bar) => `${said(bar)}: `;
  const parts = rows.map((each, at) => histogram(each, at * row, row, scale, { from, step }, place, what));
  const below = bottomAxis((value) => scale(value + shift), values, rows.length * row, label, width, format);
  return picture(width, rows.length * row + 38, label, below, parts);
}

function histogram({ variant, bars, refused, marks, title }, top, row, scale, { from, step }, place, what) {
  const highest = Math.max(1, ...bars.map((bar, at) => bar + (refused?.[at] ?? 0)));
  const tall = row - 30,
    bottom = top + row - 4;
  const rects = bars.flatMap((bar, at) => {
    const other = refused?.[at] ?? 0;
    const x = scale(from + at * step),
      wide = Math.max(1, scale(from + (at + 1) * step) - x - 1);
    const high = (tall * bar) / highest,
      more = (tall * other) / highest;
    const said = `${place(at)}${bar} ${what}${other ? `, ${other} refused` : ""}`;
    return [
      bar > 0 &&
        s(
          "rect",
          { x, y: bottom - high, width: wide, height: high, fill: colour(variant), opacity: 0.75 },
          s("title", { text: said }),
        ),
      other > 0 &&
        s(
          "rect",
          { x, y: bottom - high - more, width: wide, height: more, class: "refused" },
          s("title", { text: said }),
        ),
    ];
  });
  const lines = marks.map(([x]) =>
    s("line", { x1: scale(x), x2: scale(x), y1: bottom - tall, y2: bottom, class: "mark" }),
  );
  const base = s("line", { x1: scale(from), x2: scale(from) + 1e4, y1: bottom, y2: bottom, class: "base" });
  const name = words(scale(from), top + 16, variant.name, { class: "name" });
  name.append(s("tspan", { class: "said", dx: 10, text: title }));
  return s("g", { "data-variant": variant.name }, base, rects, lines, name);
}

const PARTS = ["download", "training", "upload"];

/** Seconds of a mean job of each device, from the fastest to the slowest. */
function deviceTimes(width, told) {
  const left = 52,
    bottom = 190,
    top = 8;
  const totals = told.clients.map((_, at) => PARTS.reduce((sum, part) => sum + told[part][at], 0));
  const most = Math.max(...totals);
  const [divisor, name] = unit(TIMES, most);
  const y = (value) => bottom - ((bottom - top) * value) / most;
  const wide = Math.min(64, (width - left - 2) / totals.length);
  const bars = told.clients.map((_, at) =>
    deviceBar(told, at, left + at * wide, Math.max(0.5, wide - (wide > 4 ? 1.5 : 0)), y),
  );
  const grid = ticks(most / divisor, 4).map((value) => [
    s("line", { x1: left, x2: width, y1: y(value * divisor), y2: y(value * divisor), class: "grid" }),
    words(left - 6, y(value * divisor) + 4, `${short(value)} ${name}`, { "text-anchor": "end", class: "tick" }),
  ]);
  const numbers =
    wide >= 22
      ? told.clients.map((_, at) =>
          words(left + (at + 0.5) * wide, bottom + 16, clipped(told.names[at], wide), { "text-anchor": "middle", class: "tick" }),
        )
      : [];
  const across = words(left, bottom + 33, `${who("device")}, from the fastest to the slowest`, { class: "tick" });
  return picture(width, bottom + 40, `Mean time per job by ${who("device")}`, grid, bars, numbers, across);
}

function deviceBar(told, at, x, width, y) {
  let below = 0;
  const rects = PARTS.map((part) => {
    const from = below;
    below += told[part][at];
    return told[part][at] > 0 && s("rect", { x, width, y: y(below), height: y(from) - y(below), class: `do-${part}` });
  });
  const said = PARTS.map((part) => `${part} ${seconds(told[part][at])}`).join(", ");
  return s("g", null, s("title", { text: `${capital(who("device"))} ${told.names[at]}, ${plural(told.jobs[at], "job")}: ${said}` }), rects);
}

function kindClass(kind) {
  return `do-${kind.split(" ").slice(0, 3).join("-")}`;
}

/** A lane for each device, and what it did when. */
function timelineLanes(width, told, kinds) {
  const left = Math.min(130, Math.max(34, 16 + 6.5 * Math.max(...told.names.map((name) => name.length)))),
    row = width < 500 ? 14 : 17,
    bottom = told.lanes.length * row + 4;
  const [divisor, name] = unit(TIMES, told.end);
  const scale = (time) => left + ((width - left - 8) * time) / told.end;
  const lanes = told.names.map((name, at) =>
    words(left - 8, at * row + row / 2 + 5, clipped(name, left - 8), { "text-anchor": "end", class: "tick" }),
  );
  const spans = told.spans.map(([lane, kind, from, to]) => {
    const said = `${capital(who("device"))} ${told.names[lane]}: ${kinds[kind]}, ${seconds(from)} to ${seconds(to)}`;
    const place = { x: scale(from), y: lane * row + 3, width: Math.max(0.6, scale(to) - scale(from)), height: row - 4 };
    return s("rect", { ...place, class: kindClass(kinds[kind]) }, s("title", { text: said }));
  });
  const lost = told.lost.map(([lane, time]) => cross(scale(time), lane * row + row / 2 + 1));
  const refused = told.refused.map(([lane, time]) =>
    s("line", { x1: scale(time), x2: scale(time), y1: lane * row + 1, y2: (lane + 1) * row + 1, class: "turned" }),
  );
  const values = ticks(told.end / divisor, width < 500 ? 4 : 8);
  const below = bottomAxis(
    (value) => scale(value * divisor),
    values,
    bottom,
    `${clock()} (${name})`,
    width - 4,
    (value) => short(value),
  );
  return picture(width, bottom + 38, `What ${who("device")}s did when`, hatches(), below, lanes, spans, lost, refused);
}

function cross(x, y) {
  return s("path", { d: `M${x - 3} ${y - 3}l6 6m0 -6l-6 6`, class: "lost" });
}

/** Fills that can be told apart without colours. */
function hatches() {
  const pattern = (id, path) =>
    s("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse" }, s("path", { d: path, class: id }));
  return s(
    "defs",
    null,
    pattern("hatch-lost", "M0 6L6 0"),
    pattern("hatch-refused", "M0 0L6 6"),
    pattern("hatch-flight", "M1 3h2"),
  );
}

const LEVELS = 8;

/** Samples by client and label: darker where there are more. All cells of a level are one path. */
function heatMap(width, told) {
  const left = 30,
    rows = told.counts[0].length,
    columns = told.counts.length;
  const wide = Math.min(48, (width - left - 2) / columns),
    high = Math.max(4, Math.min(24, 320 / rows));
  const most = Math.max(1, ...told.counts.flat());
  const paths = Array.from({ length: LEVELS }, () => []);
  told.counts.forEach((labels, client) =>
    labels.forEach((samples, label) => {
      if (!samples) return;
      const level = Math.min(LEVELS - 1, Math.floor((LEVELS * (samples - 1)) / most));
      paths[level].push(
        box(left + client * wide, label * high, wide > 5 ? wide - 1 : wide, high > 5 ? high - 1 : high),
      );
    }),
  );
  const cells = paths.map((path, level) => path.length && s("path", { d: path.join(""), class: `level-${level}` }));
  const bottom = rows * high,
    right = left + columns * wide;
  const ground = s("rect", { x: left, y: 0, width: columns * wide, height: bottom, class: "ground" });
  const every = Math.ceil((rows * 14) / bottom),
    apart = Math.ceil((columns * 30) / (right - left));
  const labels = Array.from(
    { length: rows },
    (_, at) =>
      at % every === 0 && words(left - 6, at * high + high / 2 + 4, at, { "text-anchor": "end", class: "tick" }),
  );
  const clients = Array.from(
    { length: columns },
    (_, at) =>
      at % apart === 0 && words(left + (at + 0.5) * wide, bottom + 16, clipped(told.names[at], apart * wide), { "text-anchor": "middle", class: "tick" }),
  );
  const title = s("title", { text: "" });
  const picked = picture(
    width,
    bottom + 36,
    `Samples by ${who()} and label`,
    title,
    ground,
    cells,
    labels,
    clients,
    words(left, bottom + 33, `${who()} (across), label (down)`, { class: "tick" }),
  );
  picked.addEventListener("mousemove", (event) => {
    title.textContent = cellWords(event, picked, told, left, wide, high);
  });
  return picked;
}

function box(x, y, width, height) {
  const [right, down] = [width.toFixed(2), height.toFixed(2)];
  return `M${x.toFixed(2)} ${y.toFixed(2)}h${right}v${down}h-${right}z`;
}

function cellWords(event, svg, told, left, wide, high) {
  const box = svg.getBoundingClientRect();
  const client = Math.floor((event.clientX - box.left - left) / wide),
    label = Math.floor((event.clientY - box.top) / high);
  const samples = told.counts[client]?.[label];
  return samples === undefined ? "" : `${who()} ${told.names[client]}, label ${label}: ${plural(samples, "sample")}`;
}

/** A mean and its interval as a dot on a line, on the scale from `least` to `most`. */
function intervalLine(found, variant, least, most) {
  const at = (value) => 4 + (112 * (Math.min(most, Math.max(least, value)) - least)) / (most - least || 1);
  const stroke = colour(variant);
  const line =
    found.low !== null &&
    s("line", { x1: at(found.low), x2: at(found.high), y1: 8, y2: 8, stroke, "stroke-width": 2, opacity: 0.55 });
  return s(
    "svg",
    { class: "interval", width: 120, height: 16, viewBox: "0 0 120 16", "aria-hidden": "true" },
    s("line", { x1: 0, x2: 120, y1: 8, y2: 8, class: "grid" }),
    line,
    s("circle", { cx: at(found.mean), cy: 8, r: 4, fill: stroke }),
  );
}
