// Line charts, drawn by uPlot: a line and a band for each variant, zoom, hover, and lines of single seeds.

const AXES = {
  rounds: { name: "Rounds", label: "round", units: COUNTS, whole: true },
  time: { units: TIMES, whole: false },
  uploads: { name: "Uploads", label: "uploads received", units: COUNTS, whole: true },
  bytes: { name: "Data sent", label: "data sent, up and down", units: SIZES, whole: false },
};

/** How the horizontal axis is called, on its button and below it. */
function axisNames(at) {
  return at === "time" ? { name: capital(clock()), label: clock() } : AXES[at];
}

/** Charts that are on the page now; a group zooms and points together. */
let charts = [];
const zooms = {};

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function colour(variant) {
  return isDark() ? variant.dark : variant.light;
}

function faded(hex, opacity) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${r}, ${g}, ${b}, ${opacity})`;
}

function lineSeries(each, scale, more) {
  const { variant } = each;
  const hidden = state.hidden.has(variant.name);
  const few = each.x.length <= 25;
  return [
    {
      label: variant.name,
      stroke: colour(variant),
      width: 2,
      spanGaps: true,
      show: !hidden,
      fedkeel: each,
      dash: variant.dash.map((length) => 2 * length),
      points: { show: few, size: 5, fill: colour(variant) },
      value: (_, v) => v,
      scale,
      ...more,
    },
    ...(each.low ? ["low", "high"].map(() => edge(each, scale, hidden)) : []),
  ];
}

function edge(each, scale, hidden) {
  return {
    label: "",
    stroke: "transparent",
    width: 0,
    spanGaps: true,
    points: { show: false },
    show: !hidden,
    scale,
    of: each,
  };
}

function seedSeries(each, scale) {
  const hidden = state.hidden.has(each.variant.name);
  const thin = { width: 1, spanGaps: true, points: { show: false }, show: !hidden, scale, of: each };
  return { label: "", stroke: faded(colour(each.variant), 0.55), ...thin };
}

/** Data, series and bands as uPlot wants them, on one common list of places. */
function joined(lines, seeds, factor) {
  const tables = [],
    series = [{}],
    bands = [];
  for (const each of lines) {
    if (each.low)
      bands.push({ series: [series.length + 2, series.length + 1], fill: faded(colour(each.variant), 0.16) });
    series.push(...lineSeries(each, "y"));
    const columns = each.low ? [each.mean, each.low, each.high] : [each.mean];
    tables.push([each.x, ...columns.map((column) => column.map((v) => (v === null ? null : v * factor)))]);
  }
  for (const each of seeds) {
    series.push(seedSeries(each, "y"));
    tables.push([each.x, each.y.map((v) => (v === null ? null : v * factor))]);
  }
  return { data: uPlot.join(tables.map(distinct)), series, bands };
}

/** uPlot wants places that rise: of several values at one place, the last. */
function distinct(table) {
  const keep = table[0].map((x, at) => x !== null && x !== table[0][at + 1]);
  return table.map((column) => column.filter((_, at) => keep[at]));
}

function axis(label, more) {
  const style = { stroke: css("--soft"), grid: { stroke: css("--grid"), width: 1 }, ticks: { show: false } };
  const font = "12px system-ui, sans-serif";
  return { ...style, label, font, labelFont: font, labelSize: 22, labelGap: 2, gap: 6, ...more };
}

/** The place of the nearest value, as lines have values at different places. */
function nearest(u, number, at) {
  const column = u.data[number];
  for (let step = 0; step < column.length; step++) {
    if (column[at - step] !== null && column[at - step] !== undefined) return at - step;
    if (column[at + step] !== null && column[at + step] !== undefined) return at + step;
  }
  return at;
}

/**
 * A chart inside `holder`. `lines` are {variant, x, mean, low?, high?}, `seeds` are {variant, x, y}. Charts
 * of one `group` zoom together. Values are told times `factor`; `marks` {x?, y?} are dotted lines; `zero`: the scale
 * begins there; `log`: it is logarithmic.
 */
function chart(
  holder,
  { lines, seeds = [], xLabel, yLabel, group, units = COUNTS, whole, factor = 1, format, marks = {}, zero, log },
) {
  const most = Math.max(...lines.map((each) => each.x.at(-1)), ...seeds.map((each) => each.x.at(-1)));
  const [divisor, unitName] = unit(units, most);
  const divided = (each) => ({ ...each, x: each.x.map((x) => (x === null ? null : x / divisor)) });
  const { data, series, bands } = joined(lines.map(divided), seeds.map(divided), factor);
  const label = unitName ? `${xLabel} (${unitName})` : xLabel;
  const tip = h("div", { class: "tip", "aria-hidden": "true" });
  const options = {
    width: holder.clientWidth,
    height: chartHeight(holder),
    series,
    bands,
    legend: { show: false },
    padding: [10, 14, 0, 0],
    cursor: {
      dataIdx: nearest,
      drag: { x: true, y: false, dist: 6 },
      sync: group ? { key: group } : undefined,
      points: { size: (u, number) => (u.series[number].fedkeel ? 7 : 0) },
    },
    scales: {
      x: { time: false },
      y: {
        distr: log ? 3 : 1,
        range: (_, least, highest) => (log ? roomyLog : roomy)(least, highest, zero, zooms[group] ? undefined : marks.y),
      },
    },
    axes: [
      axis(label, { size: 26, incrs: whole ? WHOLE : undefined, space: 60 }),
      axis(log ? `${yLabel}, log scale` : yLabel, {
        size: axisWidth,
        values: (_, ticks) => tickLabels(ticks),
        ...(log ? { splits: (_u, _axis, low, high) => logTicks(low, high), filter: (_, ticks) => ticks } : {}),
      }),
    ],
    hooks: {
      draw: [(u) => drawMarks(u, { ...marks, x: marks.x === undefined ? undefined : marks.x / divisor })],
      setCursor: [(u) => showTip(u, tip, unitName, format)],
      setScale: [(u, key) => key === "x" && zoomed(u, group)],
    },
  };
  const made = new uPlot(options, data, holder);
  made.over.append(tip);
  made.group = group;
  made.full = ends(data[0]);
  made.holder = holder;
  charts.push(made);
  holder.onkeydown = (event) => moveByKey(event, made);
  const kept = group && zooms[group];
  if (kept && kept[0] < made.full[1] && kept[1] > made.full[0]) made.setScale("x", { min: kept[0], max: kept[1] });
  return made;
}

/** Of the scale when everything is shown. */
function ends(places) {
  const [first, last] = [places[0], places.at(-1)];
  return first < last ? [first, last] : [first - 1, last + 1];
}

const WHOLE = [1, 2, 5].flatMap((n) => [0, 1, 2, 3, 4, 5, 6, 7, 8].map((p) => n * 10 ** p)).sort((a, b) => a - b);

function chartHeight(holder) {
  return holder.classList.contains("large") ? 340 : 250;
}

/** Room around all values, and around a mark as long as everything is shown. */
function roomy(least, highest, zero, mark) {
  if (least === null) return [0, 1];
  const low = Math.min(least, zero ? 0 : least, mark ?? least);
  const high = Math.max(highest, mark ?? highest);
  const room = 0.06 * (high - low) || Math.abs(high) * 0.1 || 1;
  return [zero && low >= 0 ? 0 : low - room, high + room];
}

/** The same on a logarithmic scale; a mark that is not above 0 has no place there. */
function roomyLog(least, highest, _, mark) {
  if (!(least > 0)) return [1, 10];
  const ends = [least, highest, mark > 0 ? mark : least].map(Math.log10);
  return roomy(Math.min(...ends), Math.max(...ends)).map((end) => 10 ** end);
}

/** Whether a linear scale would flatten most of a chart: its values are positive, and differ more than a hundredfold. */
function isSteep(lines, seeds) {
  const columns = [...lines.flatMap((each) => [each.mean, each.low, each.high]), ...seeds.map((each) => each.y)];
  const values = columns.flatMap((column) => column ?? []).filter((value) => Number.isFinite(value));
  const [least, most] = values.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
  return least > 0 && most > 100 * least;
}

/** The numbers on a logarithmic axis: about three to eight, at powers of ten and, on a short one, at 2 and 5 between. */
function logTicks(low, high) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.floor(Math.log10(high))];
  const apart = Math.ceil((last - first) / 8) || 1;
  const steps = last - first < 2 ? [1, 2, 3, 5, 7] : last - first < 4 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let power = Math.floor(first / apart) * apart; power <= last; power += apart)
    ticks.push(...steps.map((step) => Number(`${step}e${power}`)).filter((tick) => tick >= low && tick <= high));
  return ticks.length > 1 ? ticks : [low, high];
}

/** As wide as the longest number of an axis. */
function axisWidth(u, labels, place, cycle) {
  const own = u.axes[place];
  if (cycle > 1) return own._size;
  const longest = (labels ?? []).reduce((one, other) => (other.length > one.length ? other : one), "");
  u.ctx.font = own.font[0];
  return Math.max(46, Math.ceil(u.ctx.measureText(longest).width / devicePixelRatio) + own.gap + 4);
}

function drawMarks(u, { x, y }) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.strokeStyle = css("--soft");
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([3 * devicePixelRatio, 4 * devicePixelRatio]);
  ctx.beginPath();
  if (y !== undefined && y >= u.scales.y.min && y <= u.scales.y.max) {
    const at = Math.round(u.valToPos(y, "y", true));
    ctx.moveTo(bbox.left, at);
    ctx.lineTo(bbox.left + bbox.width, at);
  }
  if (x !== undefined && x >= u.scales.x.min && x <= u.scales.x.max) {
    const at = Math.round(u.valToPos(x, "x", true));
    ctx.moveTo(at, bbox.top);
    ctx.lineTo(at, bbox.top + bbox.height);
  }
  ctx.stroke();
  ctx.restore();
}

function showTip(u, tip, unitName, format) {
  const { left, idx } = u.cursor;
  const shown = u.series.map((each, at) => [each, at]).filter(([each]) => each.fedkeel && each.show);
  tip.hidden = left < 0 || idx === null || idx === undefined || !shown.length || !isPointedAt(u);
  if (tip.hidden) return;
  const x = u.data[0][idx];
  const rows = shown.map(([each, at]) => tipRow(u, each, at, format)).sort((a, b) => b.value - a.value);
  tip.replaceChildren(
    h("b", { text: `${u.axes[0].label.replace(/ \(.*/, "")} ${short(x, 4)} ${unitName}` }),
    ...rows.map((row) => row.element),
  );
  const right = left > u.over.clientWidth / 2;
  tip.classList.toggle("left", right);
  tip.style.left = right ? "auto" : `${Math.min(left + 14, u.over.clientWidth - tip.offsetWidth)}px`;
  tip.style.right = right
    ? `${Math.min(u.over.clientWidth - left + 14, u.over.clientWidth - tip.offsetWidth)}px`
    : "auto";
}

/** Only the chart under the mouse tells values; the others of its group show a line alone. */
function isPointedAt(u) {
  return u.over.matches(":hover") || !u.group;
}

function tipRow(u, each, at, format) {
  const place = u.cursor.idxs[at] ?? u.cursor.idx;
  const value = u.data[at][place];
  const range = each.fedkeel.low && ` (${format(u.data[at + 1][place])} to ${format(u.data[at + 2][place])})`;
  const name = h("span", { class: "name", text: each.label });
  return {
    value: value ?? -Infinity,
    element: h("div", null, swatch(each.fedkeel.variant), name, h("span", { text: format(value) + (range || "") })),
  };
}

let propagating = false;

function zoomed(u, group) {
  if (!group || !u.full || propagating) return;
  const { min, max } = u.scales.x;
  const whole = min <= u.full[0] && max >= u.full[1];
  zooms[group] = whole ? undefined : [min, max];
  propagating = true;
  for (const other of charts) {
    if (other !== u && other.group === group)
      other.setScale("x", whole ? { min: other.full[0], max: other.full[1] } : { min, max });
  }
  propagating = false;
  for (const button of document.querySelectorAll(`[data-reset="${group}"]`)) button.hidden = whole;
}

function resetZoom(group) {
  const one = charts.find((each) => each.group === group);
  if (one) one.setScale("x", { min: one.full[0], max: one.full[1] });
}

/** + and - zoom, arrows move, 0 shows everything. */
function moveByKey(event, u) {
  const { min, max } = u.scales.x;
  const width = max - min;
  const moves = {
    "+": [min + width / 4, max - width / 4],
    "-": [min - width / 2, max + width / 2],
    0: u.full,
    ArrowLeft: [min - width / 4, max - width / 4],
    ArrowRight: [min + width / 4, max + width / 4],
  };
  const move = moves[event.key];
  if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  u.setScale("x", { min: Math.max(u.full[0], move[0]), max: Math.min(u.full[1], move[1]) });
}

function showHidden() {
  for (const u of charts) {
    u.batch(() => {
      u.series.forEach((each, at) => {
        const variant = (each.fedkeel ?? each.of)?.variant;
        if (variant) u.setSeries(at, { show: !state.hidden.has(variant.name) });
      });
    });
  }
}

function clearCharts() {
  for (const each of charts) each.destroy();
  charts = [];
}

function resizeCharts() {
  for (const each of charts) {
    const width = each.holder.clientWidth;
    if (width && width !== each.width) each.setSize({ width, height: chartHeight(each.holder) });
  }
}

/** A short line in the colour and the dashes of a variant. */
function swatch(variant) {
  const line = {
    x1: 1,
    x2: 25,
    y1: 5,
    y2: 5,
    stroke: colour(variant),
    "stroke-width": 3,
    "stroke-dasharray": variant.dash.map((d) => 1.5 * d).join(" "),
  };
  return s(
    "svg",
    { class: "swatch", width: 26, height: 10, viewBox: "0 0 26 10", "aria-hidden": "true" },
    s("line", line),
  );
}
