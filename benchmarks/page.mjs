// Opens a report in a new browser and prints how many milliseconds it takes until it is drawn.
//   node page.mjs PLAYWRIGHT CHROMIUM ADDRESS

import { launch } from "../tests/browser/launch.mjs";

const [playwright, executablePath, address] = process.argv.slice(2);
const browser = await launch(playwright, executablePath);
try {
  const page = await browser.newPage({ viewport: { width: 1200, height: 900 } });
  const began = performance.now();
  await page.goto(address);
  await page.evaluate(
    () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))),
  );
  process.stdout.write(String(performance.now() - began));
} finally {
  await browser.close();
}
