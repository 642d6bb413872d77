# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The rules of docs/architecture.md that a machine can check."""

import ast
import re
from pathlib import Path

import pytest

from phasejax import typing

ROOT = Path(__file__).parents[1]
MAX_LINES = 500
MAX_LINES_OF_A_KERNEL = 800

# Left to right; a module imports from its own room and from those before it.
ROOMS = (
    {"typing", "validation", "files", "_compat", "_lazy"},
    {"tasks", "compress", "attention"},
    {"models"},
    {"checkpoints"},
    {"training"},
    {"evals"},
    {"statistics"},
    {"analysis"},
)
RANK = {room: rank for rank, rooms in enumerate(ROOMS) for room in rooms}
# Flags and overridable configs belong to scripts; a test library belongs to tests.
NOT_FOR_THE_LIBRARY = {"absl", "argparse", "click", "ml_collections", "pytest", "hypothesis"}
CODE_FOLDERS = ("phasejax", "pallas_kernels", "scripts", "configs", "tests")


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> set[str]:
    """Dotted names that a file imports, wherever in it; `from a import b` gives a.b."""
    package = name_of(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*base, node.module] if node.module else base)
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def room_of(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ""


def parametrize_files(*folders: str):
    return pytest.mark.parametrize(
        "path", sources(*folders), ids=lambda p: str(p.relative_to(ROOT))
    )


def test_every_module_has_its_room():
    rooms = {room_of(name_of(path)) for path in sources("phasejax")} - {""}
    assert rooms <= set(RANK), "give it a place in ROOMS here and in docs/architecture.md"


def test_the_document_draws_the_same_order():
    text = (ROOT / "docs/architecture.md").read_text()
    line = next(line for line in text.splitlines() if line.count("->") == len(ROOMS) - 1)
    drawn = [set(re.findall(r"\w+", part)) for part in line.split("->")]
    assert drawn == list(ROOMS)


def test_every_alias_is_used():
    used = set().union(*map(imports, sources("phasejax")))
    aliases = {f"phasejax.typing.{name}" for name in typing.__all__}
    assert not aliases - used, "delete it from phasejax/typing.py"


@parametrize_files("phasejax")
def test_imports_go_one_way(path):
    room = room_of(name_of(path))
    if not room:  # the package's own __init__ re-exports lazily
        return
    for name in imports(path):
        if name.split(".")[0] == "phasejax" and (other := room_of(name)) in RANK:
            assert RANK[other] <= RANK[room], f"{room} imports {name}, which is further right"


@parametrize_files("phasejax", "pallas_kernels")
def test_the_library_does_not_know_its_users(path):
    outside = NOT_FOR_THE_LIBRARY | {"scripts", "configs", "tests"}
    if path.is_relative_to(ROOT / "pallas_kernels"):
        outside |= {"phasejax"}
    assert not {name.split(".")[0] for name in imports(path)} & outside


@parametrize_files("phasejax", "pallas_kernels")
def test_the_library_is_silent_and_leaves_settings_alone(path):
    calls = [n.func for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
    assert "print" not in {f.id for f in calls if isinstance(f, ast.Name)}
    assert "jax.config.update" not in {
        ast.unparse(f) for f in calls if isinstance(f, ast.Attribute)
    }


@parametrize_files("scripts")
def test_scripts_import_no_tests(path):
    assert not {name for name in imports(path) if name.startswith("tests")}


@parametrize_files(*CODE_FOLDERS)
def test_file_is_short_and_has_its_licence(path):
    lines = path.read_text().splitlines()
    is_kernel = path.name.startswith("pallas_") and path.is_relative_to(ROOT / "pallas_kernels")
    assert len(lines) <= (MAX_LINES_OF_A_KERNEL if is_kernel else MAX_LINES)
    if lines:
        assert "SPDX-License-Identifier: Apache-2.0" in "\n".join(lines[:3])
