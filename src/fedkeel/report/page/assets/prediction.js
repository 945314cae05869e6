// The section about simulations that predict a run on real machines.

function predictionSection(digest) {
  const found = here(digest.predictions);
  return section(
    "prediction",
    "Predicted against measured",
    found.flatMap((each) => [
      predictionTable(digest, each, found.length > 1),
      ...each.notes.map((text) => note(sentenceCase(text))),
      each.jobs.length > 0 && jobFigure(each),
    ]),
  );
}

function predictionTable(digest, each, several) {
  const { share } = each.metric;
  const told = (unit, value) => {
    if (value === null) return NOTHING;
    if (unit === "s") return seconds(value);
    return unit === "metric" && share ? percent(value, 2) : compact(value);
  };
  const rows = each.quantities.map(([name, unit, measured, predicted]) => ({
    cells: [titled(name), told(unit, measured), told(unit, predicted), apart(unit, share, measured, predicted)],
  }));
  const heads = [
    { text: "Quantity" },
    { text: "Measured", number: true },
    { text: "Predicted", number: true },
    { text: "Difference", number: true },
  ];
  const which = several ? `${digest.variants[each.variant].name}, seed ${each.seed}. ` : "";
  const caption = `${which}Measured is the run in ${each.measured}; predicted is its simulation on the devices of that run.`;
  return table({ caption, heads, rows });
}

/** By how much the prediction is off: times relatively, shares in points, others in their own unit. */
function apart(unit, share, measured, predicted) {
  if (measured === null || predicted === null) return NOTHING;
  const off = predicted - measured;
  if (unit === "s") return measured > 0 ? `${signed(tidy((100 * off) / measured, 1), 1)}\u00a0%` : NOTHING;
  if (unit === "metric" && share) return `${signed(tidy(100 * off, 2), 2)} points`;
  return `${off > 0 ? "+" : ""}${compact(off)}`;
}

/** Without what is rounded away, so that no zero has a sign. */
function tidy(value, decimals) {
  return Math.round(value * 10 ** decimals) / 10 ** decimals || 0;
}

function jobFigure(each) {
  const some = each.of > each.jobs.length ? ` The chart shows ${each.jobs.length} of ${short(each.of, 6)} clients.` : "";
  const [element, holder] = drawn(
    "Time of each client's job",
    `Median from dispatch to arrival. On the diagonal, the prediction is right.${some}`,
  );
  later(() => drawing(holder, (width) => jobScatter(width, each.jobs)));
  return element;
}

/** A point for each client; both axes have the same scale. */
function jobScatter(width, jobs) {
  const left = 60,
    top = 8,
    side = Math.max(120, Math.min(380, width - left - 12)),
    bottom = top + side;
  const most = 1.08 * Math.max(...jobs.flatMap(([, measured, predicted]) => [measured, predicted])) || 1;
  const [divisor, name] = unit(TIMES, most);
  const x = (value) => left + (side * value) / most,
    y = (value) => bottom - (side * value) / most;
  const grid = ticks(most / divisor, 5).map((value) => {
    const at = value * divisor;
    return [
      s("line", { x1: left, x2: left + side, y1: y(at), y2: y(at), class: "grid" }),
      s("line", { x1: x(at), x2: x(at), y1: top, y2: bottom, class: "grid" }),
      words(left - 6, y(at) + 4, short(value), { "text-anchor": "end", class: "tick" }),
      words(x(at), bottom + 16, short(value), { "text-anchor": "middle", class: "tick" }),
    ];
  });
  const points = jobs.map(([client, measured, predicted]) =>
    s(
      "circle",
      { cx: x(measured), cy: y(predicted), r: 4, class: "point" },
      s("title", { text: `${/^\d+$/.test(client) ? `Client ${client}` : client}: measured ${seconds(measured)}, predicted ${seconds(predicted)}` }),
    ),
  );
  const middle = top + side / 2;
  const turned = { "text-anchor": "middle", class: "tick", transform: `rotate(-90 14 ${middle})` };
  return picture(
    width,
    bottom + 40,
    "Predicted against measured time of each client's job",
    grid,
    s("line", { x1: left, x2: left + side, y1: bottom, y2: top, class: "diagonal" }),
    points,
    words(left + side, bottom + 33, `measured (${name})`, { "text-anchor": "end", class: "tick" }),
    words(14, middle, `predicted (${name})`, turned),
  );
}
