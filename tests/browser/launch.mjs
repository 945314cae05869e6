// Starts a browser without a screen, which asks nobody for anything.

import { createRequire } from "node:module";

const ARGUMENTS = [
  "--headless",
  "--no-sandbox",
  "--disable-gpu",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

export function launch(playwright, executablePath) {
  const { chromium } = createRequire(import.meta.url)(playwright);
  return chromium.launch({ executablePath, args: ARGUMENTS });
}
