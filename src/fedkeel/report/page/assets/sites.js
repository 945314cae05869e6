// The sites of runs on real machines: what each did, and who was missing.

/** Who tested the model, if sites did. */
function testers({ figures, sites }) {
  return figures.tested_by === null ? "" : `, tested by ${figures.tested_by} of ${plural(sites[0].sites.length, "site")}`;
}

/** What each site did in a run on real machines. */
function sitesSection(digest) {
  const found = here(digest.sites);
  return section(
    "sites",
    "Sites",
    found.flatMap((each) => [
      siteTable(digest, each, found.length > 1),
      ...each.missing.map((text) => note(sentenceCase(text))),
    ]),
  );
}

function siteTable(digest, { variant, sites }, several) {
  const tests = sites.some(([, , , , tested]) => tested !== null);
  const heads = [
    { text: "Site" },
    { text: "Samples", number: true },
    { text: "Updates", number: true },
    { text: "Jobs lost", number: true },
    ...(tests ? [{ text: "Tests", number: true }, { text: "In the last test" }] : []),
  ];
  const rows = sites.map(([name, samples, updates, lost, tested, last]) => ({
    cells: [
      name,
      count(samples),
      count(updates),
      count(lost),
      ...(tests ? [count(tested), last === null ? NOTHING : last ? "yes" : "no"] : []),
    ],
  }));
  const which = several ? `${digest.variants[variant].name}. ` : "";
  const tested = tests ? " Tests are the evaluations in which a site tested the model on its own rows." : "";
  const caption = `${which}Updates are the uploads of a site that were used: in methods with rounds, the rounds in which it trained.${tested}`;
  return table({ caption, heads, rows });
}
