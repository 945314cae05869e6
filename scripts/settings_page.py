"""Writes docs/settings.md from the settings themselves.

python scripts/settings_page.py [--check]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from wrap_docs import wrapped

from fedkeel import methods, models
from fedkeel.config import catalogue
from fedkeel.config.catalogue import Group, Setting
from fedkeel.config.experiment import Experiment
from fedkeel.data import partition
from fedkeel.study.files import StudyFile

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
ORDER = (
    "dataset",
    "partition",
    "model",
    "algorithm",
    "local",
    "schedule",
    "fleet",
    "wire",
    "gate",
    "faults",
    "finetune",
)
"""What users change most comes first; sections that are not named here come behind."""
INTRO = """# Settings

Every setting of an experiment, with its default, the values that it may have, and what it means. The names are the same
in YAML files, on the command line and in Python: `local: {lr: 0.1}` in a file is `local.lr=0.1` on the command line and
`Experiment(local={"lr": 0.1})` in Python. Where a value may be a name or a section, `model: lenet5` is short for
`model: {name: lenet5}`.

The same texts on the command line:

```console
fedkeel show --explain                                     # all settings
fedkeel show --explain local.lr fleet                      # one setting and one section
fedkeel show --explain algorithm --set algorithm=fedagg    # the settings of a method
```

## In your editor

`fedkeel show --schema > fedkeel.schema.json` writes a JSON schema. Editors with a YAML language server, such as VS Code
with its YAML extension, complete settings by it, show what they mean, and mark mistakes. Begin your file with this
line, which holds the path of the schema:

```yaml
# yaml-language-server: $schema=fedkeel.schema.json
```
"""


def page() -> str:
    """The whole page."""
    first, *rest = catalogue.groups(Experiment())
    plain = {group.section: group for group in rest if not group.owner}
    order = [*ORDER, *(name for name in plain if name not in ORDER)]
    own = [setting for setting in first.settings if not setting.is_section]
    parts = [INTRO, "## The experiment\n", _table(own)]
    for name in order:
        parts += _SPECIAL[name](plain) if name in _SPECIAL else _plain(plain[name])
    about = "Settings of a file that describes a comparison of several runs ([compare.md](compare.md)).\n"
    parts += ["## Comparisons\n", about, _table(catalogue.of_section(StudyFile))]
    return wrapped("\n".join(parts))


def _plain(group: Group) -> list[str]:
    return [f"## {group.section}\n", f"{group.about}\n", _table(group.settings)]


def _partitions(plain: dict[str, Group]) -> list[str]:
    groups = [catalogue.partition_group(kind) for kind in partition.names()]
    common = [each for each in groups[0].settings if all(each in group.settings for group in groups)]
    parts = [*_plain(Group("partition", "", plain["partition"].about, (*plain["partition"].settings, *common)))]
    for group in groups:
        own = [each for each in group.settings if each not in common]
        parts += [f"### partition: {group.owner}\n", f"{group.about}\n", *([_table(own)] if own else [])]
    return parts


def _methods(plain: dict[str, Group]) -> list[str]:
    parts = _plain(plain["algorithm"])
    for each in methods.methods().values():
        group = catalogue.method_group(each)
        parts += [
            f"### algorithm: {group.owner}\n",
            f"{group.about}\n",
            *([_table(group.settings)] * bool(group.settings)),
        ]
    return parts


def _models(plain: dict[str, Group]) -> list[str]:
    """One row per option: many models have the same ones."""
    found: dict[str, list[tuple[str, Setting]]] = {}
    for name in models.names():
        for setting in catalogue.of_model(name):
            found.setdefault(setting.name, []).append((name, setting))
    options = [_option(each) for each in found.values()]
    return [*_plain(plain["model"]), "### Options of models\n", _table(options)]


def _option(owners: Sequence[tuple[str, Setting]]) -> Setting:
    first = owners[0][1]
    defaults = sorted({setting.default for _, setting in owners})
    names = ", ".join(name for name, _ in owners)
    which = "all models" if len(owners) == len(models.names()) else names
    default = defaults[0] if len(defaults) == 1 else "depends on the model"
    return Setting(first.name, default, first.values, f"{first.meaning} For {which}.")


def _transforms(plain: dict[str, Group]) -> list[str]:
    del plain
    row = next(each for each in catalogue.of_section(Experiment) if each.name == "wire")
    parts = ["## wire\n", f"{row.meaning}\n"]
    for group in catalogue.transform_groups():
        parts += [f"### wire: {group.owner}\n", f"{group.about}\n", _table(group.settings)]
    return parts


_SPECIAL = {"partition": _partitions, "algorithm": _methods, "model": _models, "wire": _transforms}


def _table(settings: Iterable[Setting]) -> str:
    lines = ["| setting | default | values | meaning |", "|---|---|---|---|"]
    for each in settings:
        default = f"`{each.default}`" if each.default and " " not in each.default else each.default
        cells = (f"`{each.name}`", default, each.values, each.meaning)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join([*lines, ""])


def main() -> int:
    """Write the page, or with --check say whether it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if the page is out of date")
    check, text = parser.parse_args().check, page()
    if check and PAGE.read_text(encoding="utf-8") != text:
        print("docs/settings.md is not up to date: make docs")
        return 1
    if not check:
        PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
