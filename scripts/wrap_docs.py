"""Wraps paragraphs and lists of Markdown pages at 120 characters; tables, code and headings stay as they are.

python scripts/wrap_docs.py [--check] FILE...
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from textwrap import wrap

WIDTH = 120
_ITEM = re.compile(r"( *)([-*]|\d+\.)( +)")
_FIXED = re.compile(r" {4}|\t|[|#>!<]|\[[^]]+\]:|---|===")
"""Begins a line that is not part of a paragraph."""
_MARK = re.compile(r" (?=(?:[-+*#>=|]|\d+\.)(?: |$))")
"""Before a word that would mean something else at the beginning of a line."""
_CODE = re.compile(r"`[^`]{1,60}`")
"""Stays on one line."""
_GLUE = "\0"


def wrapped(text: str) -> str:
    """The same page with other line breaks."""
    lines: list[str] = []
    block: list[str] = []
    code = False

    def flush() -> None:
        if block:
            item = _ITEM.match(block[0])
            indent = item.group(0) if item else re.match(" *", block[0]).group(0)  # type: ignore[union-attr]
            words = " ".join(line.strip() for line in block).removeprefix(indent.strip()).strip()
            glued = _CODE.sub(lambda code: code.group().replace(" ", _GLUE), _MARK.sub(_GLUE, words))
            options = {"break_long_words": False, "break_on_hyphens": False}
            made = wrap(glued, WIDTH, initial_indent=indent, subsequent_indent=" " * len(indent), **options)
            lines.extend(line.replace(_GLUE, " ") for line in made)
            block.clear()

    for line in text.splitlines():
        fence = line.lstrip().startswith("```")
        inside = bool(block) and line.startswith(" ")
        if code or fence or not line.strip() or (_FIXED.match(line) and not inside):
            flush()
            lines.append(line)
            code ^= fence
        else:
            if _ITEM.match(line):
                flush()
            block.append(line)
    flush()
    return "\n".join(lines) + "\n"


def main() -> int:
    """Wrap files, or with --check say which are not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if something would change")
    parser.add_argument("files", nargs="+", type=Path)
    asked = parser.parse_args()
    changed = []
    for path in asked.files:
        text = path.read_text(encoding="utf-8")
        if wrapped(text) != text:
            changed.append(path)
            if not asked.check:
                path.write_text(wrapped(text), encoding="utf-8")
    for path in changed:
        print(f"{path} {'is not wrapped: make docs' if asked.check else 'wrapped'}")
    return int(asked.check and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
