// The page as a whole: what the reader chose, drawing everything, and news from runs that are going on.

const state = {
  hidden: new Set(),
  axis: null,
  scene: 0,
  seeds: false,
  run: 0,
  theme: "auto",
  open: new Set(),
  printing: false,
};
let current = null;
let waiting = [];

/** Charts need the width of their place, so they are drawn once everything is on the page. */
function later(draw) {
  waiting.push(draw);
}

function isDark() {
  if (state.printing || state.theme === "light") return false;
  return state.theme === "dark" || matchMedia("(prefers-color-scheme: dark)").matches;
}

function choose(changes) {
  if ("axis" in changes && changes.axis !== state.axis) zooms.curves = undefined;
  if ("scene" in changes) zooms.curves = undefined;
  Object.assign(state, changes);
  render();
}

const SECTIONS = [
  goingOnSection,
  resultSection,
  sitesSection,
  scenesSection,
  targetSection,
  curvesSection,
  predictionSection,
  clientsSection,
  classesSection,
  updatesSection,
  labelsSection,
  devicesSection,
  faultsSection,
  settingsSection,
];

function render() {
  const focused = focusKey(document.activeElement);
  const { scrollX, scrollY } = window;
  document.documentElement.dataset.theme = state.printing ? "light" : state.theme;
  clearCharts();
  drawings = [];
  waiting = [];
  const main = document.querySelector("main");
  main.replaceChildren(heading(current), ...SECTIONS.map((make) => make(current)).filter(Boolean), footer(current));
  renderLegend();
  for (const draw of waiting) draw();
  markHidden();
  for (const group of Object.keys(zooms))
    for (const button of document.querySelectorAll(`[data-reset="${group}"]`)) button.hidden = !zooms[group];
  window.scrollTo(scrollX, scrollY);
  if (focused) document.querySelector(focused)?.focus({ preventScroll: true });
}

function focusKey(element) {
  if (element?.id) return `#${CSS.escape(element.id)}`;
  const [name, value] = Object.entries(element?.dataset ?? {})[0] ?? [];
  return name ? `[data-${name}="${CSS.escape(value)}"]` : null;
}

function heading(digest) {
  const runs = digest.runs;
  const states = [
    ["finished", "finished"],
    ["failed", "failed"],
    ["pruned", "stopped early"],
    ["going on", "running"],
    ["stopped", "not finished"],
    ["not begun", "not started"],
  ].filter(([name]) => runs[name]);
  const told =
    runs.finished === runs.all ? "all finished" : states.map(([name, text]) => `${runs[name]} ${text}`).join(", ");
  const parts = [
    digest.variants.length > 1 && plural(digest.variants.length, word(digest)),
    digest.scenes.length > 1 && plural(digest.scenes.length, "scene"),
    runs.all > 1 && `${plural(digest.seeds.length, "seed")}`,
    `${plural(runs.all, "run")}, ${runs.all === 1 ? states[0][1] : told}`,
  ].filter(Boolean);
  const notes = digest.notes.map((each) => note(sentenceCase(each)));
  if (runs.stopped && !runs["going on"]) {
    const [are, them] = runs.stopped > 1 ? ["runs were", "them"] : ["run was", "it"];
    notes.push(note(`${runs.stopped} ${are} stopped before the end, and no process is working on ${them}.`));
    if (digest.way_on) notes.push(repeat(digest.way_on, "To continue"));
  }
  const failed =
    digest.failed.length > 0 &&
    h(
      "p",
      { class: "alarm" },
      `${plural(digest.failed.length, "run")} failed: `,
      h("a", { href: "#faults", text: "see why" }),
      ".",
    );
  return h(
    "header",
    { class: "title" },
    h("h1", { text: digest.title }),
    h("p", { class: "lede", text: parts.join(" · ") }),
    failed,
    digest.sites.flatMap((each) => each.missing).length > 0 &&
      h("p", { class: "alarm" }, "Not all sites took part in everything: ", h("a", { href: "#sites", text: "see who" }), "."),
    notes,
  );
}

function footer(digest) {
  const times = {
    virtual: "Times are virtual: they are those of the simulated devices.",
    wall: "Times are those of the server's clock.",
    both: "Times of simulations are virtual; those of runs on real machines are of the server's clock.",
  }[digest.clock];
  return h("footer", { text: `Made by fedkeel ${digest.fedkeel}. ${times} Charts are drawn by uPlot (MIT licence).` });
}

function renderLegend() {
  const bar = document.querySelector("#legend");
  const several = current.variants.length > 1;
  const chips = several
    ? current.variants.map((variant) =>
        h(
          "button",
          {
            type: "button",
            class: "chip",
            "data-chip": variant.name,
            "aria-pressed": String(!state.hidden.has(variant.name)),
            title: `Show or hide ${variant.name} in all charts and tables`,
            onclick: () => toggle(variant),
          },
          swatch(variant),
          h("span", { text: variant.name }),
        ),
      )
    : [];
  const all =
    several &&
    h("button", {
      type: "button",
      class: "plain",
      id: "all",
      hidden: !state.hidden.size,
      onclick: showAll,
      text: `Show all ${word(current)}s`,
    });
  const options = current.scenes.map((scene, place) =>
    h("option", { value: place, selected: place === state.scene, text: scene }),
  );
  const scenes =
    current.scenes.length > 1 &&
    h(
      "label",
      { class: "scene" },
      "Scene ",
      h("select", { id: "scene", onchange: (event) => choose({ scene: Number(event.target.value) }) }, options),
    );
  bar.replaceChildren(...[scenes, ...chips, all].filter(Boolean));
  bar.hidden = !bar.children.length;
  const long = current.variants.some((each) => each.name.length > 18);
  bar.classList.toggle("many", current.variants.length > 4 || current.scenes.length > 1 || long);
  document.querySelector("#name").textContent = current.title;
  document.title = current.title;
  document.querySelector("#theme").setAttribute("aria-label", isDark() ? "Change to light" : "Change to dark");
}

function toggle(variant) {
  if (!state.hidden.delete(variant.name)) state.hidden.add(variant.name);
  hiddenChanged();
}

function showAll() {
  state.hidden.clear();
  hiddenChanged();
}

function hiddenChanged() {
  showHidden();
  for (const redraw of drawings) {
    redraw.width = 0;
    redraw();
  }
  markHidden();
}

/** Rows and buttons of methods that are hidden. */
function markHidden() {
  for (const row of document.querySelectorAll("tr[data-variant]"))
    row.classList.toggle("faint", state.hidden.has(row.dataset.variant));
  for (const chip of document.querySelectorAll("[data-chip]"))
    chip.setAttribute("aria-pressed", String(!state.hidden.has(chip.dataset.chip)));
  const all = document.querySelector("#all");
  if (all) all.hidden = !state.hidden.size;
}

/** Show a digest; again and again while runs go on. What the reader chose stays. */
function update(digest) {
  const names = new Set(digest.variants.map((each) => each.name));
  for (const name of state.hidden) if (!names.has(name)) state.hidden.delete(name);
  state.axis ??= digest.measure.at;
  if (state.scene >= digest.scenes.length) state.scene = 0;
  current = digest;
  render();
}

function changeTheme() {
  const next = { auto: isDark() ? "light" : "dark", light: "dark", dark: "light" };
  state.theme = next[state.theme];
  try {
    localStorage.setItem("fedkeel-theme", state.theme);
  } catch {} // a browser may keep nothing for a file
  render();
}

function rememberedTheme() {
  try {
    const kept = localStorage.getItem("fedkeel-theme");
    return kept === "light" || kept === "dark" ? kept : "auto";
  } catch {
    return "auto";
  }
}

function redraw() {
  resizeCharts();
  for (const each of drawings) each();
}

function print(begins) {
  state.printing = begins;
  document.documentElement.classList.toggle("printing", begins);
  render();
}

function tell(text, kind) {
  const badge = document.querySelector("#live");
  badge.hidden = false;
  badge.textContent = text;
  badge.className = kind;
}

const AGAIN = 3000;
let latest = "";

function tellState() {
  const { runs, complete } = current;
  const word = complete ? "complete" : runs["going on"] ? "live" : runs.stopped ? "stopped" : "waiting";
  tell(word, word);
}

/** Follows the runs; a browser tries again by itself, unless the server told an error. */
function follow() {
  const source = new EventSource("events");
  source.addEventListener("open", tellState);
  source.addEventListener("digest", (event) => {
    if (event.data === latest) return;
    latest = event.data;
    update(JSON.parse(latest));
    tellState();
  });
  source.addEventListener("error", () => {
    if (!current.complete) tell("connection lost, reconnecting", "lost");
    if (source.readyState === EventSource.CLOSED) setTimeout(follow, AGAIN);
  });
}

function start() {
  state.theme = rememberedTheme();
  document.querySelector("#theme").addEventListener("click", changeTheme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", render);
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  let frame = 0;
  new ResizeObserver(() => {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(redraw);
  }).observe(document.querySelector("main"));
  window.fedkeel = { update, state };
  update(JSON.parse(document.querySelector("#digest").textContent));
  if (document.documentElement.dataset.live !== undefined) follow();
}

start();
