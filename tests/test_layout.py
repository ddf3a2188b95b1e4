"""Who imports whom: every layer knows only those below it, and starting the command loads nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "rhnzip"
MODULES = sorted(PACKAGE.rglob("*.py"))

ENGINE = {"exact", "models"}
CODING = {"adaptation", "coding", "experts"} | ENGINE
STREAMS = {"archive", "streams"} | CODING

# For each part, which others it may import. `rhnzip/__init__.py` is the part "".
ALLOWED = {
    "": {"streams"},
    "__main__": {"cli"},
    "adaptation": ENGINE,
    "archive": set(),
    "cli": {"", "files", "training"} | STREAMS,
    "coding": CODING,
    "errors": set(),
    "exact": set(),
    "experts": ENGINE,
    "files": set(),
    "models": {"exact"},
    "streams": STREAMS,
    "training": ENGINE,
}


def part(module: str) -> str:
    """Return the part that a dotted module name belongs to; training/cli.py belongs to the command line."""
    if f"{module}.".startswith("rhnzip.training.cli."):
        return "cli"
    return module.partition(".")[2].partition(".")[0]


def name_of(path: Path) -> str:
    names = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def imports(source: str, package: str) -> Iterator[str]:
    """Yield the dotted name of everything that `source`, a module of `package`, imports anywhere in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for (
                alias
            ) in node.names:  # `from rhnzip import x` may name a part or something that __init__ holds
                found = f"{base}.{alias.name}"
                is_module = base != "rhnzip" or part(found) in ALLOWED
                yield found if is_module else base


def violations(source: str, module: str, package: str) -> list[str]:
    """Return what `module` imports of rhnzip and may not."""
    own = part(module)
    open_to_it = ALLOWED[own] | {own, "errors"}
    found = {name for name in imports(source, package) if name.split(".")[0] == "rhnzip"}
    return sorted(name for name in found if part(name) not in open_to_it)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_import_direction(path: Path) -> None:
    module = name_of(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    assert violations(path.read_text("utf-8"), module, package) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("rhnzip.exact.cpu", "from rhnzip.models.rhn import RHN"),
        ("rhnzip.exact.cpu", "import rhnzip.models"),
        ("rhnzip.exact.cpu", "from ..models import rhn"),
        ("rhnzip.exact.cpu", "from rhnzip import models"),
        ("rhnzip.exact.cpu", "from rhnzip import compress"),
        ("rhnzip.archive.header", "def f():\n    from rhnzip.coding import PRESETS"),
        ("rhnzip.models.rhn", "from rhnzip.training.loop import train"),
        ("rhnzip.training.loop", "from rhnzip.streams import compress"),
        ("rhnzip.coding.block", "from rhnzip import streams"),
        ("rhnzip.streams", "from rhnzip.cli import cli"),
        ("rhnzip.training.loop", "from rhnzip.training.cli import train"),
    ],
)
def test_direction_violation_is_found(module: str, line: str) -> None:
    assert len(violations(line, module, module.rpartition(".")[0])) == 1


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("rhnzip.exact.cpu", "import torch\nfrom rhnzip.errors import BackendError\nfrom . import constants"),
        (
            "rhnzip.coding.block",
            "from rhnzip.exact.constants import COUNT_TOTAL\nfrom ..adaptation import learn",
        ),
        ("rhnzip.cli", "from rhnzip import __version__\nfrom rhnzip.training.cli import train"),
        (
            "rhnzip.training.cli",
            "from rhnzip.streams import compress\nfrom rhnzip.training.loop import train",
        ),
    ],
)
def test_allowed_imports_pass(module: str, line: str) -> None:
    assert violations(line, module, module.rpartition(".")[0]) == []


def test_archive_needs_no_numerics() -> None:
    sources = [path.read_text("utf-8") for path in MODULES if part(name_of(path)) == "archive"]
    roots = {name.split(".")[0] for source in sources for name in imports(source, "rhnzip.archive")}
    assert roots and roots <= sys.stdlib_module_names | {"rhnzip", "xxhash"}


@pytest.mark.parametrize(
    "statement",
    [
        "import rhnzip; rhnzip.RhnzipError; dir(rhnzip)",
        "import rhnzip.cli",
        "import rhnzip.archive",
        "from rhnzip.cli import cli; cli(['--help'], standalone_mode=False)",
        "from rhnzip.cli import cli; cli(['compress', '--help'], standalone_mode=False)",
    ],
)
def test_light_start(statement: str) -> None:
    heavy = {"constriction", "numba", "numpy", "torch", "tqdm"}
    check = f"import sys; {statement}; sys.exit(', '.join({heavy!r} & set(sys.modules)) or None)"
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=PACKAGE.parent, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
