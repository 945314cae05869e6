// The sections of the page, in their order. Each returns its content, or nothing where there is nothing to say.

const here = (list) => list.filter((each) => each.scene === state.scene);

function section(id, title, ...content) {
  const parts = content.flat().filter(Boolean);
  return parts.length
    ? h("section", { id, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title`, text: title }), parts)
    : null;
}

function figure(title, sentence, className) {
  const holder = h("div", {
    class: `chart ${className ?? ""}`,
    tabindex: 0,
    role: "group",
    "aria-label": `${title}. ${sentence}`,
  });
  return [h("figure", null, h("h3", { text: title }), holder, h("figcaption", { text: sentence })), holder];
}

function drawn(title, sentence) {
  const holder = h("div", { class: "drawing" });
  return [h("figure", null, h("h3", { text: title }), holder, h("figcaption", { text: sentence })), holder];
}

function note(text) {
  return h("p", { class: "note", text });
}

function resultSection(digest) {
  const lines = here(digest.lines);
  if (digest.figures) return section("result", "Result", figureTiles(digest));
  return section("result", "Result", standingTable(digest, lines), standingNote(digest, lines));
}

function whenReached(found) {
  if (found.rounds_to_target === null) return "not reached";
  const cost = `${seconds(found.seconds_to_target)} and ${bytes(found.bytes_to_target)}`;
  return `reached in round ${found.rounds_to_target}, after ${cost}`;
}

function figureTiles(digest) {
  const found = digest.figures;
  const { target } = digest.measure;
  const judged = metric(digest);
  const others = found.others.map((each) => [
    `Test ${spelled(each.words)}`,
    each.share ? percent(each.value, 2) : short(each.value, 4),
    each.better === "lower" ? "lower is better" : "",
  ]);
  const tiles = [
    [
      `Test ${judged.words}${judged.arrow}`,
      judged.told(found.value),
      (digest.runs.failed ? "before it failed" : digest.complete ? "at the end" : "so far") + testers(digest),
    ],
    [`Best ${judged.words}`, judged.told(found.best), "of all evaluations"],
    found.validation !== null && [`Validation ${judged.words}`, judged.told(found.validation), ""],
    ...others,
    ["Test loss", compact(found.loss), ""],
    found.clients && [
      `Worst tenth of ${who()}s`,
      judged.told(found.clients.worst_decile, 1),
      `mean of all ${who()}s ${judged.told(found.clients.mean, 1)}${found.estimated ? ", estimated from the common test set" : ""}`,
    ],
    ["Rounds", count(found.rounds), `${count(found.uploads)} upload${found.uploads === 1 ? "" : "s"}`],
    [capital(clock()), seconds(found.virtual_seconds), ""],
    [
      "Data sent",
      bytes(found.bytes_up === null ? null : found.bytes_up + found.bytes_down),
      `${bytes(found.bytes_up)} of it uploaded`,
    ],
    target !== null && ["Target", judged.goal(target), whenReached(found)],
  ];
  if (found.rounds === null) return note("There is no evaluation yet.");
  return h(
    "dl",
    { class: "tiles" },
    tiles
      .filter(Boolean)
      .map(([name, value, more]) =>
        h(
          "div",
          null,
          h("dt", { text: name }),
          h("dd", null, h("span", { class: "value", text: value }), h("span", { class: "more", text: more })),
        ),
      ),
  );
}

function goingOnSection(digest) {
  return digest.going_on.length ? section("now", "Running", goingOnTable(digest)) : null;
}

function scenesSection(digest) {
  if (digest.scenes.length < 2) return null;
  const { words, factor, share, lower } = metric(digest);
  const made = section("scenes", "All scenes", sceneTable(digest), digest.tasks.length > 0 && taskTable(digest));
  if (digest.tasks.length > 1) {
    const [element, holder] = figure(
      "Performance profile",
      `Share of all runs, over all scenes, whose ${words} is ${lower ? "below" : "above"} a threshold` +
        (digest.tasks.some((each) => each.middle.low !== null) ? "; the bands are 95 % intervals." : "."),
    );
    made.append(element);
    later(() =>
      chart(holder, {
        lines: digest.tasks.map((each) => ({
          variant: digest.variants[each.variant],
          ...each.profile,
          x: each.profile.x.map((x) => factor * x),
        })),
        xLabel: `${words} ${lower ? "below" : "above"}${share ? " (%)" : ""}`,
        yLabel: "share of runs (%)",
        factor: 100,
        zero: true,
        format: (v) => percent(v / 100),
      }),
    );
  }
  return made;
}

function targetSection(digest) {
  const { target } = digest.measure;
  if (target === null || digest.figures || !digest.runs.finished) return null;
  const { words, share, goal } = metric(digest);
  return section(
    "target",
    `Cost of reaching ${share ? "" : `${words} `}${goal(target)}`,
    targetTable(digest, here(digest.lines)),
    digest.measure.validated && note("The target is looked at on the validation set."),
  );
}

const LOSSES = [
  ["loss", "Test loss", "test loss", 1, compact],
  ["train_loss", "Training loss", "training loss", 1, compact],
];

function curvesSection(digest) {
  const found = here(digest.curves);
  if (!found.length) return section("curves", "Learning curves", note("There is no evaluation yet."));
  const grid = h("div", { class: "figures" });
  const { words, arrow, axis, factor, share } = metric(digest);
  const format = share ? (v) => `${fixed(v, 2)} %` : compact;
  const judged = ["value", `Test ${words}${arrow}`, axis, factor, format];
  for (const curve of [judged, ...LOSSES]) curveFigure(digest, found, grid, curve);
  return section("curves", "Learning curves", curveControls(digest), grid);
}

function curveControls(digest) {
  const buttons = Object.keys(AXES).map((at) =>
    h("button", {
      type: "button",
      "aria-pressed": String(state.axis === at),
      "data-axis": at,
      onclick: () => choose({ axis: at }),
      text: axisNames(at).name,
    }),
  );
  const axes = h("div", { class: "segments", role: "group", "aria-label": "Horizontal axis" }, buttons);
  const check = h("input", {
    type: "checkbox",
    id: "seeds",
    checked: state.seeds,
    onchange: (event) => choose({ seeds: event.target.checked }),
  });
  const seeds = here(digest.seed_lines).length > 0 && h("label", { class: "check" }, check, "Show each seed");
  const reset = h("button", {
    type: "button",
    class: "plain",
    "data-reset": "curves",
    onclick: () => resetZoom("curves"),
    text: "Reset zoom",
    hidden: true,
  });
  return h(
    "div",
    { class: "controls" },
    axes,
    seeds,
    reset,
    h("span", { class: "hint", text: "Drag to zoom in, double-click to zoom out." }),
  );
}

function curveFigure(digest, found, grid, [column, title, yLabel, factor, format]) {
  const { lines, seeds } = curveLines(digest, found, column);
  if (!lines.length) return;
  const several = lines.some((each) => each.low);
  const { units, whole } = AXES[state.axis];
  const { label } = axisNames(state.axis);
  const limit = digest.measure.limits[state.scene];
  const furthest = Math.max(...lines.map((each) => each.x.at(-1)));
  const marks = {
    y: column === "value" && digest.measure.target !== null ? factor * digest.measure.target : undefined,
    x: digest.measure.at === state.axis && limit !== null && limit < furthest ? limit : undefined,
  };
  const sentence = curveSentence(digest, column, several, marks.x !== undefined);
  const [element, holder] = figure(title, sentence, column === "value" ? "large" : "");
  element.classList.toggle("wide", column === "value");
  grid.append(element);
  later(() =>
    chart(holder, { lines, seeds, xLabel: label, yLabel, group: "curves", units, whole, factor, format, marks, log: isLog(digest, found, column) }),
  );
}

/** The lines of a chart, and those of single seeds if they are asked for. */
function curveLines(digest, found, column) {
  const lines = found
    .map((each) => ({ variant: digest.variants[each.variant], ...each.axes[state.axis]?.[column] }))
    .filter((each) => each.x);
  const seeds = state.seeds
    ? here(digest.seed_lines).map((each) => ({
        variant: digest.variants[each.variant],
        x: each.x[state.axis],
        y: each[column],
      }))
    : [];
  return { lines, seeds };
}

/** Whether a chart has a logarithmic axis: both losses or none, and errors without an upper bound. */
function isLog(digest, found, column) {
  const { share, lower } = metric(digest);
  if (column === "value" && (share || !lower)) return false;
  const columns = column === "value" ? [column] : LOSSES.map(([name]) => name);
  const all = columns.map((name) => curveLines(digest, found, name));
  return isSteep(all.flatMap((each) => each.lines), all.flatMap((each) => each.seeds));
}

function curveSentence(digest, column, several, cut) {
  const lines =
    several && column === "value"
      ? "Each line is the mean over seeds, up to the end of the shortest run. Each band goes from the lowest seed to the highest."
      : "";
  const target =
    column === "value" && digest.measure.target !== null
      ? `The dotted line is the target, ${metric(digest).goal(digest.measure.target)}.`
      : "";
  const what = column === "train_loss" ? "Mean over the samples that the participants of a round trained on, at the time they did so." : "";
  const better = column === "value" ? metric(digest).better : "";
  const where = column === "value" && cut ? "The vertical line marks where the runs are compared." : "";
  return [what, better, lines, target, where].filter(Boolean).join(" ");
}

function clientsSection(digest) {
  const found = here(digest.clients);
  const title = `${titled(metric(digest).words)} by ${who()}`;
  if (!found.length && !digest.complete) return null;
  if (!found.length)
    return section(
      "clients",
      title,
      note(`Not recorded. Set evaluate_clients=true to test the model on each ${who()} at the end of a run.`),
    );
  const content = [
    ["value", ""],
    ["finetuned", ", after fine-tuning"],
  ].flatMap(([column, more]) => {
    const rows = found.filter((each) => each.column === column);
    return rows.length ? [clientFigure(digest, rows, more)] : [];
  });
  const when = note("Each run's model after its last round, also where runs are compared before their end.");
  return section("clients", title, [...content, when], clientTable(digest));
}

function clientFigure(digest, found, more) {
  const judged = metric(digest);
  const estimated = found.some((each) => each.estimated);
  const how = estimated
    ? " These are estimates: each client is tested on rows of the common test set with the same mix of labels as its own."
    : "";
  const [element, holder] = drawn(
    `${estimated ? "Estimated from the common test set" : `On the test rows of each ${who()}`}${more}`,
    `Number of ${who()}s by ${judged.words}, over all seeds.${how} Vertical lines mark the mean of the worst ` +
      `tenth of ${who()}s and the mean of all.`,
  );
  const rows = found.map((each) => ({
    variant: digest.variants[each.variant],
    bars: each.bars,
    marks: [[each.worst], [each.mean]],
    title: `mean ${judged.told(each.mean, 1)}, worst tenth ${judged.told(each.worst, 1)}`,
  }));
  later(() =>
    drawing(holder, (width) =>
      histograms(width, {
        rows: visible(rows),
        step: (found[0].most - found[0].least) / found[0].bars.length,
        from: found[0].least,
        most: found[0].most,
        label: `${judged.words} of a ${who()}${judged.share ? " (%)" : ""}`,
        format: (v) => (judged.share ? fixed(100 * v, 0) : compact(v, 3)),
        what: `${who()}s`,
      }),
    ),
  );
  return element;
}

/** Clients that have names, one per row. */
function clientTable(digest) {
  const found = here(digest.named_clients);
  if (!found.length) return null;
  const judged = metric(digest);
  const heads = [
    { text: capital(who()) },
    { text: "Test rows", number: true },
    ...found.map((each) => ({ text: digest.variants[each.variant].name, number: true })),
  ];
  const value = (each, name) => each.clients.find((other) => other.name === name)?.value;
  const told = judged.share ? judged.told : alike(found.flatMap((each) => each.clients.map((client) => client.value)));
  const rows = found[0].clients.map((client) => ({
    cells: [
      client.name,
      count(client.rows),
      ...found.map((each) => told(value(each, client.name))),
    ],
  }));
  const some = found[0].all > rows.length ? ` These are the first ${rows.length} of ${found[0].all} ${who()}s.` : "";
  const what = `${titled(judged.words)} of each ${who()}, mean over seeds.`;
  return table({ caption: `${[what, judged.better].filter(Boolean).join(" ")}${some}`, heads, rows });
}

const visible = (rows) => rows.filter((each) => !state.hidden.has(each.variant.name));

function updatesSection(digest) {
  const found = here(digest.jobs);
  const line = (name) =>
    found.filter((each) => each[name]).map((each) => ({ variant: digest.variants[each.variant], ...each[name] }));
  const grid = h("div", { class: "figures" });
  const add = (name, title, sentence, more) => {
    const lines = line(name);
    if (!lines.length) return;
    const [element, holder] = figure(title, sentence);
    grid.append(element);
    later(() => chart(holder, { lines, whole: true, format: (v) => short(v, 4), ...more }));
  };
  const band = "Each line is the mean over uploads. Each band goes from the lowest to the highest.";
  add("rates", "Learning rates", `${band} All local steps count.`, {
    xLabel: "round in which the job was sent",
    yLabel: "learning rate",
    zero: true,
  });
  add("weights", "Weights of uploads", `${band} These are the weights that the server used.`, {
    xLabel: "round in which the job was sent",
    yLabel: "weight",
    zero: true,
  });
  add("weight_at", "Weight by staleness", band, { xLabel: "staleness (versions)", yLabel: "weight", zero: true });
  const stale = stalenessFigure(digest, found);
  if (stale) grid.append(stale);
  const cut = found.filter((each) => each.cut).map((each) => digest.variants[each.variant].name);
  const seedsOf = [...new Set(found.map((each) => each.seed))].join(", ");
  const read = short(Math.max(...found.map((each) => each.rows)), 6);
  const some = cut.length ? ` For ${listed(cut)}, only the first ${read} uploads were read.` : "";
  const which = `These charts show one run per ${word(digest)}: seed ${seedsOf}.${some}`;
  if (!grid.children.length) return null;
  return section("updates", "Learning rates, staleness and weights", digest.figures ? null : note(which), grid);
}

function stalenessFigure(digest, found) {
  const stale = found.filter((each) => each.staleness);
  if (!stale.length) return null;
  const most = Math.max(...stale.map((each) => each.staleness.most)) + 1;
  const step = Math.max(...stale.map((each) => each.staleness.width));
  const red = stale.some((each) => each.staleness.refused.some(Boolean)) ? " Red bars are uploads that the server rule refused." : "";
  const [element, holder] = drawn(
    "Staleness",
    `Number of uploads by staleness: how many new versions of the model appeared while a job was on its way.${red}`,
  );
  const rows = stale.map((each) => ({
    variant: digest.variants[each.variant],
    bars: regrouped(each.staleness.accepted, step / each.staleness.width),
    refused: regrouped(each.staleness.refused, step / each.staleness.width),
    marks: [[each.staleness.mean + (step === 1 ? 0.5 : 0)]],
    title: `mean ${short(each.staleness.mean)}, highest ${each.staleness.most}`,
  }));
  later(() =>
    drawing(holder, (width) =>
      histograms(width, {
        rows: visible(rows),
        step,
        most: Math.ceil(most / step) * step,
        label: "staleness (versions)",
        format: (v) => short(v),
        what: "uploads",
        whole: true,
      }),
    ),
  );
  return element;
}

/** Bars of another width, which is about so many times as large. */
function regrouped(bars, times) {
  const wide = Math.max(1, Math.round(times));
  return Array.from({ length: Math.ceil(bars.length / wide) }, (_, at) =>
    bars.slice(at * wide, (at + 1) * wide).reduce((a, b) => a + b, 0),
  );
}
