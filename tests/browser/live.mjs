// Opens a live report, waits until it is complete, and prints as JSON what it said on the way.
//   node live.mjs PLAYWRIGHT CHROMIUM ADDRESS

import { launch } from "./launch.mjs";

const [playwright, executablePath, address] = process.argv.slice(2);
const found = { errors: [], requests: [] };

const browser = await launch(playwright, executablePath);
try {
  const page = await browser.newPage();
  page.on("pageerror", (error) => found.errors.push(String(error)));
  page.on("console", (message) => message.type() === "error" && found.errors.push(message.text()));
  page.on("request", (request) => found.requests.push(request.url()));
  await page.addInitScript(() => {
    window.said = [];
    new MutationObserver(() => {
      window.first ??= document.querySelector("main .lede")?.textContent;
      const text = document.querySelector("#live")?.textContent;
      if (text && text !== window.said.at(-1)) window.said.push(text);
    }).observe(document, { subtree: true, childList: true, characterData: true });
  });
  await page.goto(address);
  await page.locator("#live.complete").waitFor({ timeout: 60_000 });
  found.last = await page.locator("main").textContent();
  found.canvases = await page.locator("canvas").count();
  found.first = await page.evaluate(() => window.first);
  found.said = await page.evaluate(() => window.said);
} finally {
  await browser.close();
}
process.stdout.write(JSON.stringify(found));
