"""Counts lines of code by folder of the package, without comments, docstrings and blank lines."""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}
SKIPPED |= {tokenize.ENDMARKER}


def code_lines(text: str) -> int:
    """Lines that hold a token of code; a string that stands alone is documentation."""
    alone: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            alone.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SKIPPED:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - alone)


def main() -> None:
    """One row per folder below the package, and the sum."""
    parser = argparse.ArgumentParser(description=__doc__)
    package = Path(__file__).parents[1] / "src" / "fedkeel"
    parser.add_argument("folder", nargs="?", type=Path, default=package, help="default: src/fedkeel of this repository")
    root: Path = parser.parse_args().folder
    if not root.is_dir():
        parser.error(f"{root} is not a folder; give a folder of Python files")
    counts: Counter[str] = Counter()
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root).parts
        counts[inside[0] if len(inside) > 1 else "(top level)"] += code_lines(path.read_text(encoding="utf-8"))
    for folder, count in sorted(counts.items()):
        print(f"{folder:12} {count:6}")
    print(f"{'all':12} {sum(counts.values()):6}")


if __name__ == "__main__":
    main()
