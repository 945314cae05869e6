// Tables: what each variant came to, what the target cost, and what holds over all scenes.

/** A table; on a phone its rows turn into cards (`cards`), or else it scrolls in a box of its own. */
function table({ caption, heads, rows, cards }) {
  const head = heads.map((each) => h("th", { scope: "col", class: each.number && "number", text: each.text }));
  const body = h(
    "tbody",
    null,
    rows.map((row) => tableRow(row, heads)),
  );
  const parts = [h("thead", null, h("tr", null, head)), body];
  if (cards) {
    return h("div", { class: "scroll" }, h("table", { class: "cards" }, h("caption", { text: caption }), parts));
  }
  const box = { class: "scroll", tabindex: 0, role: "region", "aria-label": caption };
  const below = h("p", { class: "caption", text: caption });
  return h("div", { class: "boxed" }, h("div", box, h("table", { "aria-label": caption }, parts)), below);
}

function tableRow({ cells, variant, marked }, heads) {
  const parts = cells.map((cell, at) => {
    const content = cell instanceof Node || Array.isArray(cell) ? [cell].flat() : [String(cell)];
    const number = heads[at].number && "number";
    return at === 0
      ? h("th", { scope: "row" }, content)
      : h("td", { class: number, "data-label": heads[at].text }, content);
  });
  return h("tr", { "data-variant": variant?.name, class: marked && "marked" }, parts);
}

const WHY_BADGE = {
  best: "It is clearly better than every other one in paired tests.",
  "may be best": "Its difference from the best mean may be noise.",
  failed: "Every run failed.",
  "stopped early": "It fell behind the median of the earlier trials.",
};

function badge(standing) {
  return standing && h("span", { class: `badge ${standing.replaceAll(" ", "-")}`, title: WHY_BADGE[standing], text: standing });
}

function named(variant, line) {
  return [
    h(
      "div",
      { class: "method" },
      swatch(variant),
      h("span", { class: "name", text: variant.name }),
      line && badge((line.standing === "level" ? "may be best" : line.standing) || nothingLeft(line)),
    ),
    line?.sentence && h("p", { class: "sentence", text: sentenceCase(line.sentence) }),
  ];
}

function nothingLeft(line) {
  if (line.finished || line.pending) return null;
  return (line.failed > 0 && "failed") || (line.pruned > 0 && "stopped early");
}

function sentenceCase(text) {
  const told = text.replace(/(^|\s)-(?=\d)/g, `$1${MINUS}`);
  return told ? `${told[0].toUpperCase()}${told.slice(1)}${/[.!?]$/.test(told) ? "" : "."}` : "";
}

function decimalsOf(digest, lines) {
  const known = lines.map((each) => each.value).filter(Boolean);
  const { share, factor } = metric(digest);
  const halves = known.filter((each) => each.low !== null).map((each) => (factor * (each.high - each.low)) / 2);
  if (share) return halves.length && Math.min(...halves) >= 1 ? 1 : 2;
  const [size, digits] = halves.some((half) => half > 0)
    ? [Math.min(...halves.filter((half) => half > 0)), 1]
    : [Math.max(...known.map((each) => Math.abs(each.mean)), 0), 3];
  return size > 0 ? Math.max(0, Math.min(8, digits - Math.floor(Math.log10(size)))) : 2;
}

function runsDone(line) {
  const all = line.finished + line.failed + line.pruned + line.pending;
  const more = [
    line.failed && `${line.failed} failed`,
    line.pruned && `${line.pruned} stopped early`,
    line.pending && `${line.pending} not finished`,
  ].filter(Boolean);
  return `${line.finished} of ${all}${more.length ? `, ${more.join(", ")}` : ""}`;
}

function standingTable(digest, lines) {
  const { reference } = digest.measure;
  const judged = metric(digest);
  const { on_validation: chosen } = digest.measure;
  const decimals = decimalsOf(digest, lines);
  const points = (value) => fixed(judged.factor * value, decimals);
  const loss = alike(lines.map((each) => each.loss?.mean));
  const known = lines.map((each) => each.value).filter(Boolean);
  const bounds = known.flatMap((each) => [each.mean, each.low ?? each.mean, each.high ?? each.mean]);
  const ends = [Math.min(...bounds), Math.max(...bounds)];
  const [least, most] = judged.share ? [Math.max(0, ends[0]), Math.min(1, ends[1])] : ends;
  const end = (value) => (judged.share ? fixed(100 * value, 0) : compact(value, 3));
  const sure = known.some((each) => each.low !== null);
  const against = reference !== null && lines.some((each) => each.difference);
  const heads = [
    { text: capital(word(digest)) },
    ...(chosen ? [{ text: `Validation ${judged.words}${judged.unit}${judged.arrow}`, number: true }] : []),
    { text: chosen ? `Test ${judged.words}${judged.unit}` : judged.head, number: true },
    ...(sure ? [{ text: `95 % interval (axis ${end(least)} to ${end(most)}${judged.share ? " %" : ""})` }] : []),
    ...(against ? [{ text: `Difference from ${reference}${judged.share ? ", points" : ""}`, number: true }] : []),
    { text: `Best ${judged.words}${judged.unit}`, number: true },
    { text: "Test loss", number: true },
    { text: "Runs finished", number: true },
  ];
  const rows = lines.map((line) => {
    const variant = digest.variants[line.variant];
    const cells = [
      named(variant, line),
      ...(chosen ? [h("b", { text: interval(line.validation, points) })] : []),
      h(chosen ? "span" : "b", { text: interval(line.value, points) }),
      ...(sure ? [line.value ? intervalLine(line.value, variant, least, most) : NOTHING] : []),
      ...(against ? [difference(line.difference, judged.factor, decimals)] : []),
      line.best ? points(line.best.mean) : NOTHING,
      loss(line.loss?.mean),
      runsDone(line),
    ];
    return { cells, variant, marked: line.standing === "best" };
  });
  return table({ caption: standingCaption(digest, sure), heads, rows, cards: true });
}

function difference(found, factor, decimals) {
  if (!found) return NOTHING;
  const mean = signed(factor * found.mean, decimals);
  if (found.low === null) return mean;
  const range = `${fixed(factor * found.low, decimals)} to ${fixed(factor * found.high, decimals)}`;
  return h("div", null, mean, h("div", { class: "range", text: range }));
}

function where(digest) {
  const { at, limits } = digest.measure;
  const limit = limits[state.scene];
  if (limit === null || limit === undefined) return "";
  const words = {
    rounds: `after ${plural(limit, "round")}`,
    time: `after ${seconds(limit)} of ${clock()}`,
    uploads: `after ${plural(limit, "upload")}`,
    bytes: `after ${bytes(limit)} up and down`,
  };
  return words[at];
}

function standingCaption(digest, sure) {
  if (!digest.runs.finished) return "No run is finished yet.";
  const { last, tuning, judged_by: by, on_validation: chosen } = digest.measure;
  const { words, better } = metric(digest);
  const what = last > 1 ? `Mean test ${words} of the last ${last} evaluations` : `Test ${words}`;
  const choice = tuning && `Settings are chosen by ${by}${chosen ? "" : ", as there is no validation set"}.`;
  const seeds = sure
    ? "mean over seeds ± half of the 95 % interval (Student's t)"
    : "there is only one seed, so there is no interval, and differences may be noise";
  return [`${[what, where(digest)].filter(Boolean).join(" ")}; ${seeds}.`, better, choice].filter(Boolean).join(" ");
}

function standingNote(digest, lines) {
  if (lines.some((line) => line.standing === "best")) {
    return note(`Best: this ${word(digest)} is clearly better than every other one when runs are compared seed by seed.`);
  }
  const why = digest.verdicts[state.scene];
  return why ? note(why) : null;
}

function targetTable(digest, lines) {
  const columns = [
    ["rounds_to_target", "Rounds", COUNTS],
    ["seconds_to_target", capital(clock()), TIMES],
    ["uploads_to_target", "Uploads", COUNTS],
    ["bytes_to_target", "Data sent", SIZES],
  ];
  const heads = [
    { text: capital(word(digest)) },
    { text: "Reached by", number: true },
    ...columns.map(([, text]) => ({ text, number: true })),
  ];
  const rows = lines.map((line) => {
    const variant = digest.variants[line.variant];
    const costs = columns.map(([name, , units]) => {
      const column = lines.map((each) => each[name]);
      return quantityInterval(line[name], units, column);
    });
    const reached = line.finished ? `${line.reached} of ${plural(line.finished, "run")}` : NOTHING;
    return { variant, cells: [named(variant), reached, ...costs] };
  });
  return table({
    caption: "Mean over the runs that reached the target, ± half of the 95 % interval. Data sent counts both directions.",
    heads,
    rows,
    cards: true,
  });
}

/** Scenes below each other, methods beside each other, with the best of each row. */
function sceneTable(digest) {
  const heads = [{ text: "Scene" }, ...digest.variants.map((each) => ({ text: each.name, number: true }))];
  const decimals = decimalsOf(digest, digest.lines);
  const rows = digest.scenes.map((scene, place) => ({
    cells: [scene, ...digest.variants.map((_, variant) => sceneCell(digest, place, variant, decimals))],
  }));
  const bold = digest.lines.some((line) => line.standing === "best")
    ? " Bold: clearly better than all others in its row."
    : "";
  const { words, share, better } = metric(digest);
  const what = `Test ${words}${share ? " in %" : ""}, mean over seeds ± half of the 95 % interval.`;
  return table({ caption: `${[what, better].filter(Boolean).join(" ")}${bold}`, heads, rows });
}

function sceneCell(digest, scene, variant, decimals) {
  const line = digest.lines.find((each) => each.scene === scene && each.variant === variant);
  if (!line?.value) return line?.failed ? h("span", { class: "reason", text: "failed" }) : NOTHING;
  const text = interval(line.value, (value) => fixed(metric(digest).factor * value, decimals));
  return h(line.standing === "best" ? "b" : "span", { text });
}

function bounds(found, tell) {
  return found.low === null ? "" : ` (${tell(found.low)} to ${tell(found.high)})`;
}

function taskTable(digest) {
  const { reference } = digest.measure;
  const better = digest.tasks.some((each) => each.improvement);
  const heads = [
    { text: capital(word(digest)) },
    { text: "Interquartile mean", number: true },
    ...(better ? [{ text: `Share of pairs of runs in which it beats ${reference}`, number: true }] : []),
  ];
  const inside = (value) => fixed(100 * value, 1);
  const range = (found) => (found ? `${percent(found.mean)}${bounds(found, inside)}` : NOTHING);
  const { share } = metric(digest);
  const middle = (found) => (share ? range(found) : `${compact(found.mean)}${bounds(found, (v) => compact(v))}`);
  const rows = digest.tasks.map((each) => {
    const variant = digest.variants[each.variant];
    return { variant, cells: [named(variant), middle(each.middle), ...(better ? [range(each.improvement)] : [])] };
  });
  const sure = digest.tasks.some((each) => each.middle.low !== null);
  return table({
    caption: sure
      ? "Over all scenes, with 95 % intervals from a stratified bootstrap. Pairs are formed over all seeds, not only equal ones."
      : "Over all scenes. Pairs are formed over all seeds, not only equal ones. Intervals need three or more seeds.",
    heads,
    rows,
    cards: true,
  });
}

function faultTable(digest, faults) {
  const kinds = (part) => [...new Set(faults.flatMap((each) => Object.keys(each[part])))];
  const columns = [
    ...kinds("lost").map((kind) => ["lost", kind]),
    ...kinds("refused").map((kind) => ["refused", kind]),
  ];
  const declined = faults.some((each) => each.declined);
  const heads = [
    { text: capital(word(digest)) },
    ...columns.map(([part, kind]) => ({ text: part === "lost" ? lostHead(kind) : `Refused by the gate: ${kind}`, number: true })),
    ...(declined ? [{ text: "Refused by the server rule", number: true }] : []),
  ];
  const rows = faults.map((each) => {
    const variant = digest.variants[each.variant];
    const numbers = columns.map(([part, kind]) => short((each[part][kind] ?? 0) / each.runs, 4));
    return { variant, cells: [named(variant), ...numbers, ...(declined ? [short(each.declined / each.runs, 4)] : [])] };
  });
  return table({
    caption: "Jobs that did not arrive and uploads that were refused, mean per run.",
    heads,
    rows,
    cards: true,
  });
}

function lostHead(kind) {
  return kind === "in flight" ? "In flight at the end" : `${kind[0].toUpperCase()}${kind.slice(1)}`;
}

/** A run of a comparison in words. */
function runName(digest, each) {
  const scene = digest.scenes.length > 1 && digest.scenes[each.scene];
  return [scene, digest.variants[each.variant].name, `seed ${each.seed}`].filter(Boolean).join(", ");
}

function goingOnTable(digest) {
  const heads = [
    { text: "Run" },
    { text: "Round", number: true },
    { text: capital(clock()), number: true },
    { text: `Test ${metric(digest).words}`, number: true },
  ];
  const rows = digest.going_on.map((each) => ({
    variant: digest.variants[each.variant],
    cells: [
      runName(digest, each),
      `${count(each.round)} of ${count(each.rounds)}`,
      seconds(each.seconds) + (each.limit_seconds ? ` of ${seconds(each.limit_seconds)}` : ""),
      metric(digest).told(each.value),
    ],
  }));
  return table({ caption: "As of the last evaluation.", heads, rows, cards: true });
}

function failedTable(digest) {
  const heads = [{ text: "Run" }, { text: "Last evaluated round", number: true }, { text: "Reason" }];
  const rows = digest.failed.map((each) => {
    const variant = digest.variants[each.variant];
    return { variant, cells: [runName(digest, each), each.round ?? NOTHING, h("span", { class: "reason", text: each.reason })] };
  });
  return table({ caption: "Runs that failed. No mean includes them.", heads, rows, cards: true });
}
