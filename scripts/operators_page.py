"""Write docs/operators.md from the operator table.

The idea: the page cannot lie, because nobody writes it.  Without arguments the file is rewritten;
with `--check` nothing is written and a stale page exits with 1.
This script does not know any operator.
"""

import sys
from pathlib import Path

from tilewright.capture import BEYOND, Entry, core_coverage
from tilewright.report import textbook

PAGE = Path(__file__).parent.parent / "docs" / "operators.md"
OPENING = """\
## Core ATen

What becomes of every operator that PyTorch tags as core: read as loops, as a composite, opaque (a
part stays torch's, the gradient is derived), left to the library (torch's own kernel, paired with
torch's own derivative), refused, or absent from every graph.

| operator | becomes | by, or why |
|---|---|---|
"""


BEYOND_CORE = """
## What stays torch's beyond the core

Each is a library call in a Program, counted, shown by `explain`, refused by
`Options(library=False)`.

| calls | why |
|---|---|
"""


def render() -> str:
    """Return the whole page."""
    rows = (f"| `{entry.overload}` | {entry.how} | {_words(entry)} |" for entry in core_coverage())
    families = (f"| {calls} | {why} |" for calls, why in BEYOND)
    core = OPENING + "\n".join(rows) + "\n"
    return f"{textbook()}\n{core}{BEYOND_CORE}" + "\n".join(families) + "\n"


def _words(entry: Entry) -> str:
    named = ", ".join(f"[{name}](#{name})" for name in entry.operators)
    return "; ".join(filter(None, (named, entry.reason)))


def main(arguments: list[str]) -> int:
    fresh = render()
    if "--check" in arguments:
        stale = not PAGE.exists() or PAGE.read_text(encoding="utf-8") != fresh
        if stale:
            print(f"{PAGE.name} is stale; run: python scripts/operators_page.py")
        return int(stale)
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
