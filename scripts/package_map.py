"""Write the package map of ARCHITECTURE.md from floors.toml and the packages' own docstrings.

The idea: the map cannot lie, because nobody writes it.  Without arguments the file is rewritten;
with `--check` nothing is written and a stale map exits with 1.
This script does not import the packages: it reads their source.
"""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "tilewright"
PAGE = ROOT / "ARCHITECTURE.md"
BEGIN = "<!-- package map: written by scripts/package_map.py -->"
END = "<!-- end of the package map -->"


def purpose_of(path: Path) -> str:
    """Return the first sentence of a package's docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    first = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", first)[0]


def render_map() -> str:
    """Return the map of the packages that exist, as a Markdown table from the ground up."""
    law = tomllib.loads((PACKAGE / "floors.toml").read_text(encoding="utf-8"))
    lines = ["| floor | package | purpose | torch |", "|---|---|---|---|"]
    for level, row in enumerate(law["floors"]):
        for name in row:
            door = PACKAGE / name / "__init__.py"
            if door.exists():
                torch = "may" if name in law["torch"] else ""
                lines.append(f"| {level} | `{name}/` | {purpose_of(door)} | {torch} |")
    return "\n".join(lines)


def replace_map(page: str) -> str:
    """Return the page with a fresh map between its two marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    for mark in (begin, end):
        assert mark, f"{PAGE.name} has lost a mark of the package map"
    return f"{before}{BEGIN}\n{render_map()}\n{END}{after}"


def main(arguments: list[str]) -> int:
    page = PAGE.read_text(encoding="utf-8")
    fresh = replace_map(page)
    if "--check" in arguments:
        if fresh != page:
            print(f"{PAGE.name}: the package map is stale; run: python scripts/package_map.py")
        return int(fresh != page)
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
