// The later sections: labels, devices, faults and settings.

function labelsSection(digest) {
  const maps = digest.labels.filter((each) => each.cells.some((cell) => cell.scene === state.scene));
  return maps.length
    ? section(
        "labels",
        maps.every((each) => each.clients && !each.counts) ? "Samples" : "Labels",
        maps.map((each) => labelMap(digest, each, maps.length > 1)),
      )
    : null;
}

function labelMap(digest, told, several) {
  const names = told.cells
    .filter((cell) => cell.scene === state.scene)
    .map((cell) => digest.variants[cell.variant].name);
  const whose = several ? `${listed(names)}: ` : "";
  if (told.why_not) return note(`${whose}The labels of the ${who()}s are not available: ${told.why_not}.`);
  const sizes = `${short(told.least, 6)} to ${short(told.most, 6)} samples per ${who()}, median ${short(told.median, 6)}.`;
  if (!told.counts) {
    const why = told.untold
      ? "The sites did not tell how many samples of each class they have (tell_labels in deploy.yaml)."
      : "The targets are not class labels.";
    return note(`${whose}${told.title}: ${plural(told.clients, who())}, ${sizes} ${why}`);
  }
  const some =
    told.clients > told.counts.length ? ` The chart shows the first ${told.counts.length} of ${short(told.clients, 6)} ${who()}s.` : "";
  const sentence = `${sizes} Mean distance between the labels of a ${who()} and those of all ${who()}s, from 0 to 1: ${fixed(told.distance, 2)}.${some}`;
  const [element, holder] = drawn(`${whose}${told.title}`, sentence);
  element.insertBefore(levels(Math.max(1, ...told.counts.flat())), element.lastChild);
  later(() => drawing(holder, (width) => heatMap(width, told)));
  return element;
}

function levels(most) {
  const boxes = Array.from({ length: LEVELS }, (_, at) =>
    s("rect", { x: at * 18, y: 2, width: 17, height: 10, class: `level-${at}` }),
  );
  return h(
    "div",
    { class: "levels" },
    h("span", { text: "1" }),
    s("svg", { width: LEVELS * 18, height: 14, "aria-hidden": "true" }, boxes),
    h("span", { text: plural(most, "sample") }),
  );
}

function devicesSection(digest) {
  const timelines = here(digest.timelines.runs),
    jobs = here(digest.jobs).filter((each) => each.devices);
  const variants = [...new Set([...timelines, ...jobs].map((each) => each.variant))].sort((a, b) => a - b);
  if (!variants.length) return null;
  const chosen = variants.includes(state.run) ? state.run : variants[0];
  const options = variants.map((each) =>
    h("option", { value: each, selected: each === chosen, text: digest.variants[each].name }),
  );
  const select = h("select", { id: "run", onchange: (event) => choose({ run: Number(event.target.value) }) }, options);
  const control =
    variants.length > 1 && h("div", { class: "controls" }, h("label", { for: "run", text: capital(word(digest)) }), select);
  const times = jobs.find((each) => each.variant === chosen),
    lanes = timelines.find((each) => each.variant === chosen);
  return section(
    "devices",
    current.clock === "wall" ? "Times of the sites" : "Devices",
    control,
    times && deviceFigure(times),
    lanes && timelineFigure(digest, lanes),
  );
}

function deviceFigure({ devices, seed }) {
  const some =
    devices.of > devices.clients.length ? ` The chart shows ${devices.clients.length} of ${short(devices.of, 6)} ${who("device")}s.` : "";
  const [element, holder] = drawn(
    "Mean time per job",
    `Recorded times of the ${who("device")}s whose uploads arrived${current.clock === "wall" ? "" : `, seed ${seed}`}.${some}`,
  );
  element.insertBefore(key(PARTS.filter((part) => devices[part].some((each) => each > 0))), element.lastChild);
  later(() => drawing(holder, (width) => deviceTimes(width, devices)));
  return element;
}

function timelineFigure(digest, told) {
  const { kinds } = digest.timelines;
  const some = told.of > told.lanes.length ? ` (${told.lanes.length} of the ${short(told.of, 6)} that worked in this time)` : "";
  const marks = [
    told.lost.length && "a cross marks the end of a lost job",
    told.refused.length && "a vertical line marks a refused upload",
  ].filter(Boolean);
  const also = marks.length ? `; ${marks.join(", ")}` : "";
  const [element, holder] = drawn(
    "Timeline",
    `The first ${seconds(told.end)} of ${current.clock === "wall" ? "the run" : `seed ${told.seed}`}: one lane per ${who("device")}${some}, from fast to slow${also}.`,
  );
  element.insertBefore(key(kinds.filter((_, at) => told.spans.some((span) => span[1] === at))), element.lastChild);
  later(() => drawing(holder, (width) => timelineLanes(width, told, kinds)));
  return element;
}

function key(kinds) {
  const box = (kind) =>
    s(
      "svg",
      { width: 14, height: 14, "aria-hidden": "true" },
      s("rect", { width: 14, height: 14, class: kindClass(kind) }),
    );
  return h(
    "div",
    { class: "key" },
    kinds.map((kind) => h("span", null, box(kind), kind)),
  );
}

function faultsSection(digest) {
  const faults = here(digest.faults);
  const content = [digest.failed.length > 0 && failedTable(digest), faults.length > 0 && faultTable(digest, faults)];
  return section("faults", "Faults and refusals", content);
}

function settingsSection(digest) {
  const tables = digest.differing.flatMap((each) => differingTable(each));
  const full = digest.settings.map((each) => fullSettings(digest, each));
  const command = digest.command || (digest.settings.length === 1 && digest.settings[0].command);
  return section(
    "settings",
    "Settings",
    command && repeat(command, "To repeat this"),
    tables,
    full.length > 0 && h("h3", { text: "All settings" }),
    full,
  );
}

const BY = {
  variant: "Settings in which the methods differ",
  scene: "Settings in which the scenes differ",
  run: "Settings that differ between methods and scenes",
};

function differingTable({ by, columns, rows, own }) {
  const heads = [{ text: "Setting" }, ...columns.map((text) => ({ text }))];
  const made =
    rows.length > 0 &&
    table({
      caption: BY[by],
      heads,
      rows: rows.map(([name, ...values]) => ({ cells: [h("code", { text: name }), ...values] })),
    });
  const alone = own.map(
    (each, at) =>
      each.length > 0 &&
      h("p", { class: "own" }, h("b", { text: columns[at] }), ` also has `, h("code", { text: each.join("  ") })),
  );
  return [made, ...alone].filter(Boolean);
}

function fullSettings(digest, each) {
  const names = [digest.scenes[each.scene], digest.variants[each.variant].name].filter(Boolean).join(", ");
  const id = `settings-${each.scene}-${each.variant}`;
  return h(
    "details",
    {
      "data-key": id,
      open: state.open.has(id),
      ontoggle: (event) => state.open[event.target.open ? "add" : "delete"](id),
    },
    h("summary", { text: names }),
    digest.runs.all > 1 && repeat(each.command, "To repeat its first run"),
    h("pre", { tabindex: 0, text: each.yaml }),
  );
}

function repeat(command, title) {
  const button = h("button", { type: "button", class: "plain copy", text: "Copy" });
  button.addEventListener("click", () => copy(command, button));
  return h(
    "div",
    { class: "repeat" },
    h("span", { text: title }),
    h("pre", { tabindex: 0 }, h("code", { text: command })),
    button,
  );
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    // a browser may forbid it: then the text is marked, and keys copy it
    getSelection().selectAllChildren(button.previousSibling);
    button.textContent = "Selected";
  }
  setTimeout(() => {
    button.textContent = "Copy";
  }, 2000);
}

/** The metric of each class alone. */
function classesSection(digest) {
  const found = here(digest.classes);
  if (!found.length) return null;
  const { words, share, names } = found[0];
  const heads = [
    { text: "Class" },
    ...found.map((each) => ({ text: `${digest.variants[each.variant].name}${share ? ", %" : ""}`, number: true })),
  ];
  const same = alike(found.flatMap((each) => each.values));
  const rows = names.map((name, place) => ({
    cells: [
      name,
      ...found.map((each) => {
        const value = each.values[place];
        return share && value !== null && value !== undefined ? fixed(100 * value, 1) : same(value);
      }),
    ],
  }));
  const caption = `${titled(words)} on the test samples of each class at the end of the runs, mean over seeds.`;
  return section("classes", `${titled(words)} by class`, table({ caption, heads, rows }));
}
