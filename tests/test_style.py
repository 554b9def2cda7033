"""The house rules that no linter knows: sizes, docstrings, names, asserts, frozen records."""

import ast
import functools
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "tilewright"
FOLDERS = ("src", "tests", "bench", "scripts", "examples")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
OURS = [path for path in FILES if path.is_relative_to(PACKAGE)]

FILE_CAP = 500
FUNCTION_CAP = 60
# Files that must be readable in one sitting have a lower cap.
FILE_CAPS = {
    "src/tilewright/graph/ir.py": 400,
    "src/tilewright/kernels/loops.py": 400,
    "src/tilewright/compiler/pipeline.py": 150,
}
# "file:function" -> why it may be longer than the cap.  This list may only shrink.
LONG_FUNCTIONS: dict[str, str] = {}

VAGUE_WORDS = {"util", "utils", "misc", "helper", "helpers", "manager", "handler", "stuff", "v2"}
# These are words of the trade inside a name (a common divisor), but no module's whole name.
VAGUE_MODULES = {"common", "base", "core", "new", "tools", "shared"}
# Where the environment may be read: the compiler's name and the cache folder, and the shell.
READS_ENVIRONMENT = ("src/tilewright/runtime/toolchain.py", "src/tilewright/cli/")
# Packages whose state changes as they run; everywhere else a public record is frozen (a private
# one may be the working state of one function).
STATEFUL = ("runtime", "train", "serve", "cli")

Check = Callable[[Path, ast.Module], Iterator[str]]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions_of(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def words_of(identifier: str) -> set[str]:
    """Split snake_case and CamelCase into lower-case words."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", identifier)}


def long_functions(path: Path, tree: ast.Module) -> Iterator[str]:
    for node in functions_of(tree):
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > FUNCTION_CAP and f"{name_of(path)}:{node.name}" not in LONG_FUNCTIONS:
            yield f"{node.name} (line {node.lineno}) has {length} lines, the cap is {FUNCTION_CAP}"


def missing_docstrings(path: Path, tree: ast.Module) -> Iterator[str]:
    empty_folder_mark = path.name == "__init__.py" and not path.is_relative_to(PACKAGE)
    if not ast.get_docstring(tree) and not empty_folder_mark:
        yield "the module has no docstring (purpose; the one idea; what it does not know)"


def vague_names(path: Path, tree: ast.Module) -> Iterator[str]:
    if path.stem in VAGUE_MODULES:
        yield f"the module's name {path.stem!r} says nothing"
    named = [(path.stem, 1)]
    for node in ast.walk(tree):
        if isinstance(node, Function | ast.ClassDef) and node.name != "__new__":
            named.append((node.name, node.lineno))
    for name, line in named:
        vague = words_of(name) & VAGUE_WORDS
        if vague or name.startswith(("base_", "new_", "_new_")):
            yield f"line {line}: {name!r} says nothing"


def mute_asserts(_: Path, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and node.msg is None:
            yield f"line {node.lineno}: assert without a message: {ast.unparse(node.test)}"


def environment_reads(path: Path, tree: ast.Module) -> Iterator[str]:
    if name_of(path).startswith(READS_ENVIRONMENT):
        return
    for node in ast.walk(tree):
        reads = isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "putenv")
        takes = isinstance(node, ast.ImportFrom) and node.module == "os"
        if reads or (takes and {alias.name for alias in node.names} & {"environ", "getenv"}):
            yield f"line {node.lineno}: reads the environment; an argument says it better"


def thawed_records(path: Path, tree: ast.Module) -> Iterator[str]:
    if path.relative_to(PACKAGE).parts[0] in STATEFUL:
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
            continue
        for decorator in node.decorator_list:
            text = ast.unparse(decorator)
            if re.match(r"(dataclasses\.)?dataclass\b", text) and "frozen=True" not in text:
                yield f"line {node.lineno}: {node.name} is a dataclass that is not frozen"


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _complaints(check: Check, paths: list[Path]) -> list[str]:
    return [f"{name_of(path)}: {text}" for path in paths for text in check(path, parsed(path))]


@pytest.mark.parametrize("check", [long_functions, missing_docstrings, vague_names])
def test_every_file_keeps(check: Check) -> None:
    assert _complaints(check, FILES) == []


@pytest.mark.parametrize("check", [mute_asserts, environment_reads, thawed_records])
def test_the_package_keeps(check: Check) -> None:
    assert _complaints(check, OURS) == []


def test_no_file_is_longer_than_its_cap() -> None:
    sizes = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    caps = {name: FILE_CAPS.get(name, FILE_CAP) for name in sizes}
    assert {name: size for name, size in sizes.items() if size > caps[name]} == {}


def test_the_list_of_long_functions_names_functions_that_are_long() -> None:
    longer = set()
    for path in FILES:
        for node in functions_of(parsed(path)):
            if (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_CAP:
                longer.add(f"{name_of(path)}:{node.name}")
    assert set(LONG_FUNCTIONS) <= longer


def test_a_thing_left_to_do_has_an_issue_number() -> None:
    mark = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b(?!\(#\d+\))")
    left = [
        f"{name_of(path)}:{token.start[0]}: {token.string}"
        for path in FILES
        for token in tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline)
        if token.type == tokenize.COMMENT and mark.search(token.string)
    ]
    assert left == []


@pytest.mark.parametrize(
    ("check", "source"),
    [
        (long_functions, "def f():\n" + "    x = 1\n" * FUNCTION_CAP),
        (missing_docstrings, "x = 1"),
        (vague_names, "class CacheManager: pass"),
        (vague_names, "def graph_v2(): pass"),
        (vague_names, "def base_pass(): pass"),
        (vague_names, "def _new_graph(): pass"),
        (mute_asserts, "assert x"),
        (environment_reads, "import os\nos.environ['CC']"),
        (environment_reads, "from os import getenv"),
        (thawed_records, "@dataclass\nclass Plan: pass"),
        (thawed_records, "@dataclass(slots=True)\nclass Plan: pass"),
    ],
)
def test_the_check_sees_a_violation(check: Check, source: str) -> None:
    assert len(list(check(PACKAGE / "graph" / "sample.py", ast.parse(source)))) == 1
