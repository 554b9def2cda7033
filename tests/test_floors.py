"""The floors hold: imports only go down, siblings stay apart, torch stays where it may be named."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "tilewright"
LAW = tomllib.loads((ROOT / "floors.toml").read_text(encoding="utf-8"))
FLOOR = {package: level for level, row in enumerate(LAW["floors"]) for package in row}
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
INSIDE = [path for path in sorted(ROOT.rglob("*.py")) if path.parent != ROOT]


@dataclass(frozen=True)
class Import:
    """One imported module (`a.b`, or `a.b.name` for a name taken from it) and its line."""

    module: str
    line: int


def imports_of(tree: ast.AST, module: str) -> Iterator[Import]:
    """Yield every import below `tree`: in functions, under TYPE_CHECKING, and by importlib."""
    package = module.rpartition(".")[0]
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    yield Import(alias.name, node.lineno)
            case ast.ImportFrom(module=source, names=aliases, level=level):
                base = source or ""
                if level:
                    above = package.split(".")[: len(package.split(".")) - level + 1]
                    base = ".".join([*above, *([source] if source else [])])
                for alias in aliases:
                    yield Import(f"{base}.{alias.name}", node.lineno)
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
                if ast.unparse(function) in ("importlib.import_module", "__import__"):
                    yield Import(name, node.lineno)


def violations_of(tree: ast.AST, module: str) -> list[str]:
    """Return what `module` (`tilewright.package....`) imports against the law."""
    package = module.split(".")[1]
    found = []
    for item in imports_of(tree, module):
        complaint = _against_floors(package, item.module) or _against_torch(package, item.module)
        if complaint:
            found.append(f"{module}:{item.line}: imports {item.module}: {complaint}")
    return found


def _against_floors(package: str, module: str) -> str:
    parts = module.split(".")
    if parts[0] != "tilewright" or (len(parts) > 1 and parts[1] == package):
        return ""
    if len(parts) == 1 or parts[1] not in FLOOR:
        return "" if package == "cli" else "only cli may import the front door itself"
    if package in LAW["alone"]:
        return f"{package} imports nothing of ours"
    below, here = FLOOR[parts[1]], FLOOR[package]
    if below >= here:
        return f"floor {here} may import floors below it only, not floor {below}"
    return ""


def _against_torch(package: str, module: str) -> str:
    if package in LAW["torch"]:
        return ""
    named = any(f"{module}.".startswith(f"{library}.") for library in LAW["torch_libraries"])
    return f"{package} may not name torch" if named else ""


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts)


@pytest.mark.parametrize("path", INSIDE, ids=module_of)
def test_imports_only_go_down(path: Path) -> None:
    assert violations_of(ast.parse(path.read_text(encoding="utf-8")), module_of(path)) == []


def test_every_package_has_a_floor_and_only_one() -> None:
    listed = [package for row in LAW["floors"] for package in row]
    assert len(listed) == len(set(listed))
    assert set(PACKAGES) <= set(listed)
    assert set(LAW["torch"]) | set(LAW["alone"]) <= set(listed)


def test_no_module_lies_outside_the_packages() -> None:
    assert {path.name for path in ROOT.glob("*.py")} <= {"__init__.py", "__main__.py"}


def test_a_package_has_at_most_one_level_of_folders() -> None:
    deep = [path for path in INSIDE if len(path.relative_to(ROOT).parts) > 3]
    assert deep == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("tilewright.graph.ir", "from tilewright.ops import table"),
        ("tilewright.graph.ir", "from tilewright import compiler"),
        ("tilewright.graph.ir", "from ..ops.table import TABLE"),
        ("tilewright.graph.ir", "def f():\n    import tilewright.runtime.load"),
        ("tilewright.graph.ir", "if TYPE_CHECKING:\n    from tilewright.program import Program"),
        ("tilewright.graph.ir", "importlib.import_module('tilewright.cli')"),
        ("tilewright.graph.ir", "import tilewright as tw"),
        ("tilewright.ops.table", "from tilewright.program import Program"),
        ("tilewright.memory.order", "from torch import nn"),
        ("tilewright.memory.order", "def f():\n    import torch.fx"),
        ("tilewright.models.gpt", "from tilewright.base.errors import ShapeError"),
        ("tilewright.kernels.emit", "import safetensors.torch"),
    ],
)
def test_the_check_sees_a_violation(module: str, source: str) -> None:
    assert len(violations_of(ast.parse(source), module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("tilewright.graph.ir", "from tilewright.base.expr import Const"),
        ("tilewright.graph.ir", "from .notation import parse"),
        ("tilewright.capture.importer", "import torch.fx"),
        ("tilewright.kernels.emit", "import safetensors, torchless"),
        ("tilewright.cli.main", "import tilewright as tw"),
    ],
)
def test_the_check_lets_the_law_abiding_pass(module: str, source: str) -> None:
    assert violations_of(ast.parse(source), module) == []


def _loads_torch(code: str) -> str:
    probe = f"import sys\n{code}\nprint('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_packages_without_torch_never_load_it() -> None:
    # The pipeline and the reports stand on packages that may name torch, so they are left out.
    above = FLOOR["compiler"]
    bare = [name for name in PACKAGES if name not in LAW["torch"] and FLOOR[name] < above]
    modules = [module_of(path).removesuffix(".__init__") for path in INSIDE]
    ours = [module for module in modules if module.split(".")[1] in bare]
    assert _loads_torch("\n".join(f"import {module}" for module in ours)) == "False"


def test_importing_the_front_door_loads_nothing_heavy() -> None:
    code = "import tilewright, sys\nassert 'numpy' not in sys.modules, 'numpy was imported'"
    assert _loads_torch(code) == "False"
