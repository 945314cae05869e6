// Opens a report in a browser and prints, as JSON, what a reader would find there.
//   node drive.mjs PLAYWRIGHT CHROMIUM ADDRESS [FOLDER FOR SCREENSHOTS]

import { launch } from "./launch.mjs";

const [playwright, executablePath, address, shots] = process.argv.slice(2);
const found = { errors: [], requests: [] };

/** A page of such a size, whose errors and requests are written down. */
async function open(browser, width, options = {}) {
  const context = await browser.newContext({ viewport: { width, height: 900 }, ...options });
  const page = await context.newPage();
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && found.errors.push(message.text()));
  page.on("pageerror", (error) => found.errors.push(String(error)));
  page.on("dialog", (dialog) => {
    found.errors.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on("request", (request) => found.requests.push(request.url()));
  await page.goto(address);
  return page;
}

const painted = (canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return data.some((value) => value !== 0);
};

/** What is on the page. */
function look(page) {
  return page.evaluate(() => {
    const text = (selector) => [...document.querySelectorAll(selector)].map((each) => each.textContent);
    return {
      title: document.title,
      heads: text("h2"),
      figures: text("h3"),
      clients: text("#clients td.number"),
      variants: text("#result .method .name"),
      sentences: text("#result .sentence"),
      badges: text("#result .badge"),
      strays: [...document.querySelectorAll("#result .method")]
        .flatMap((each) => [...each.childNodes])
        .filter((node) => node.nodeType === Node.TEXT_NODE && node.data.trim())
        .map((node) => node.data),
      canvases: document.querySelectorAll("canvas").length,
      axis: document.querySelector('[data-axis][aria-pressed="true"]')?.textContent,
      scripts: document.querySelectorAll("script").length,
      images: document.querySelectorAll("img, iframe, object").length,
      rects: document.querySelectorAll("#devices rect").length,
      heat: document.querySelectorAll("#labels path[class^=level]").length,
    };
  });
}

/** Whether charts have anything drawn on them. */
async function drawn(page) {
  const charts = await page.locator("canvas").all();
  return Promise.all(charts.map((chart) => chart.evaluate(painted)));
}

/** How many lines of a method a chart shows. */
function shown(page, name) {
  return page.evaluate(
    (variant) => ({
      pressed: document.querySelector(`[data-chip="${CSS.escape(variant)}"]`).getAttribute("aria-pressed"),
      faint: document.querySelectorAll("tr.faint").length,
      histograms: document.querySelectorAll(`g[data-variant="${CSS.escape(variant)}"]`).length,
    }),
    name,
  );
}

/** The pixels of a chart, to see whether it changed. */
const pixels = (page, selector) =>
  page
    .locator(`${selector} canvas`)
    .first()
    .evaluate((canvas) => canvas.toDataURL());

/** What stands out to the right of a narrow page, outside of boxes that scroll. */
function overflow(page) {
  return page.evaluate(() => ({
    page: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    inside: [...document.querySelectorAll("main *")]
      .filter((each) => each.getBoundingClientRect().right > innerWidth + 1 && !each.closest(".scroll, pre, svg"))
      .map((each) => `${each.tagName}.${each.className}`),
  }));
}

async function shoot(page, name) {
  if (shots) await page.screenshot({ path: `${shots}/${name}.png`, fullPage: true });
}

async function wide(browser) {
  const page = await open(browser, 1280);
  found.look = await look(page);
  found.drawn = await drawn(page);
  await shoot(page, "wide");
  const name = found.look.variants[0];
  if (await page.locator(".chip").count()) {
    found.before = [await shown(page, name), await pixels(page, "#curves")];
    await page.locator(".chip").first().click();
    found.hidden = [await shown(page, name), await pixels(page, "#curves")];
    await page.evaluate(() => window.fedkeel.update(JSON.parse(document.querySelector("#digest").textContent)));
    found.updated = await shown(page, name);
    await page.locator("#all").click();
    found.again = [await shown(page, name), await pixels(page, "#curves")];
  }
  await chooseAxis(page);
  await zoom(page);
  found.seeds = await changes(page, "#seeds", (box) => box.check());
  found.scene = await changes(page, "#scene", (list) => list.selectOption("1"));
  found.run = await changes(page, "#run", (list) => list.selectOption({ index: 1 }), "#devices svg");
  found.printed = (await page.pdf({ format: "A4" })).length;
}

/** Whether a control, where it is there, changes a picture. */
async function changes(page, selector, act, what = "#curves canvas") {
  const control = page.locator(selector);
  if (!(await control.count())) return null;
  const picture = () =>
    page
      .locator(what)
      .first()
      .evaluate((each) => each.toDataURL?.() ?? each.outerHTML);
  const before = await picture();
  await act(control);
  return (await picture()) !== before;
}

async function chooseAxis(page) {
  found.axes = [];
  for (const axis of ["time", "uploads", "bytes", "rounds"]) {
    await page.locator(`[data-axis=${axis}]`).click();
    found.axes.push([(await look(page)).axis, await pixels(page, "#curves")]);
  }
}

async function zoom(page) {
  const over = page.locator("#curves .u-over").first();
  await over.scrollIntoViewIfNeeded();
  const box = await over.boundingBox();
  const before = await pixels(page, "#curves");
  await page.mouse.move(box.x + box.width * 0.3, box.y + 50);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.7, box.y + 50, { steps: 4 });
  await page.mouse.up();
  const reset = page.locator('[data-reset="curves"]');
  found.zoom = { offered: await reset.isVisible(), changed: (await pixels(page, "#curves")) !== before };
  await page.mouse.move(box.x + box.width / 2, box.y + 60);
  found.zoom.tip = await page.locator("#curves .tip").first().textContent();
  await page.evaluate(() => window.fedkeel.update(JSON.parse(document.querySelector("#digest").textContent)));
  found.zoom.kept = await reset.isVisible();
  await reset.click();
  found.zoom.over = !(await reset.isVisible());
  await page.locator("#curves .chart").first().press("+");
  found.zoom.byKey = await reset.isVisible();
  await page.locator("#curves .chart").first().press("0");
  found.zoom.overByKey = !(await reset.isVisible());
}

async function narrow(browser) {
  const page = await open(browser, 360, { hasTouch: true, isMobile: true });
  found.narrow = await overflow(page);
  await page.evaluate(() =>
    document.querySelectorAll("details").forEach((each) => {
      each.open = true;
    }),
  );
  found.opened = await overflow(page);
  await shoot(page, "phone");
  found.chartsOnPaper = await page.evaluate(async () => {
    window.dispatchEvent(new Event("beforeprint"));
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    const page = document.querySelector("main").clientWidth;
    const widths = [...document.querySelectorAll("#curves canvas")].map((each) => each.getBoundingClientRect().width / page);
    window.dispatchEvent(new Event("afterprint"));
    return widths;
  });
}

async function dark(browser) {
  const page = await open(browser, 1280, { colorScheme: "dark" });
  const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  found.grounds = [await ground()];
  await shoot(page, "dark");
  await page.locator("#theme").click();
  found.grounds.push(await ground());
}

const browser = await launch(playwright, executablePath);
try {
  await wide(browser);
  await narrow(browser);
  await dark(browser);
} finally {
  await browser.close();
}
process.stdout.write(JSON.stringify(found));
