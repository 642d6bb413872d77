# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What is installed, imported and promised: metadata, imports, commands in the documents."""

import ast
import configparser
import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import phasejax
from phasejax import _compat

ROOT = Path(__file__).parents[1]
TEXT_SUFFIXES = {
    "",
    ".py",
    ".md",
    ".cfg",
    ".toml",
    ".cff",
    ".lock",
    ".ipynb",
    ".json",
    ".html",
    ".j2",
}
SKIPPED_FOLDERS = {".git", ".venv", "build", "runs", "report", "__pycache__"}
PROJECT_FOLDERS = ("phasejax", "pallas_kernels", "scripts", "configs", "tests", "notebooks", "docs")


def project_files() -> list[Path]:
    """Text files of the project; `git ls-files` where there is a repository, a walk elsewhere."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        paths = [
            *ROOT.iterdir(),
            *(p for folder in PROJECT_FOLDERS for p in (ROOT / folder).rglob("*")),
        ]
    return [
        path
        for path in sorted(paths)
        if path.is_file()
        and (path.suffix in TEXT_SUFFIXES)
        and not SKIPPED_FOLDERS & set(path.relative_to(ROOT).parts)
    ]


def setup_cfg() -> configparser.ConfigParser:
    config = configparser.ConfigParser()
    assert config.read(ROOT / "setup.cfg")
    return config


def requirements(text: str) -> set[str]:
    """Normalised names of a list of requirements."""
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    names = [re.split(r"[\[<>=!~ ;]", line)[0] for line in lines if line]
    return {re.sub(r"[-_.]+", "-", name).lower() for name in names}


def run_python(code: str) -> dict:
    """Runs code that prints one JSON object, in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def makefile_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


# Metadata.


def test_version_is_the_same_everywhere():
    assert importlib.metadata.version("phasejax") == phasejax.__version__
    assert f"version: {phasejax.__version__}" in (ROOT / "CITATION.cff").read_text()
    assert f"## [{phasejax.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_pyproject_holds_the_build_system_only():
    text = (ROOT / "pyproject.toml").read_text()
    assert re.findall(r"^\[(.+)\]", text, re.MULTILINE) == ["build-system"]


def test_only_the_two_packages_are_installed():
    find = setup_cfg()["options.packages.find"]["include"].split()
    assert find == ["phasejax*", "pallas_kernels*"]


def test_the_unrelated_pallas_of_pypi_is_no_dependency():
    config = setup_cfg()
    lists = [config["options"]["install_requires"], *config["options.extras_require"].values()]
    assert "pallas" not in set().union(*map(requirements, lists))
    assert "pallas" not in requirements((ROOT / "requirements.lock").read_text())


def test_every_dependency_is_pinned():
    config = setup_cfg()
    lists = [config["options"]["install_requires"], *config["options.extras_require"].values()]
    lock = (ROOT / "requirements.lock").read_text()
    assert set().union(*map(requirements, lists)) <= requirements(lock)
    pins = [line for line in lock.splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][\w.+]*", pin) for pin in pins)


def test_jax_has_no_upper_bound():
    assert re.search(r"^jax>=0\.10\.2$", setup_cfg()["options"]["install_requires"], re.MULTILINE)


def test_types_are_shipped():
    assert (ROOT / "phasejax/py.typed").is_file()
    assert "py.typed" in setup_cfg()["options.package_data"]["phasejax"].split()


# Imports.


def test_importing_phasejax_imports_nothing_heavy():
    code = """
import json, sys, phasejax
heavy = ('jax', 'flax', 'numpy', 'scipy', 'matplotlib')
print(json.dumps([name for name in heavy if name in sys.modules]))
"""
    assert run_python(code) == []


def test_importing_every_module_touches_no_device_and_defines_no_flag():
    code = """
import importlib, json, pkgutil, phasejax
names = [m.name for m in pkgutil.walk_packages(phasejax.__path__, 'phasejax.')]
for name in names:
    importlib.import_module(name)
from absl import flags
from jax._src import xla_bridge
print(json.dumps({
    'modules': len(names),
    'backend': xla_bridge.backends_are_initialized(),
    'flags': [m for m in flags.FLAGS.flags_by_module_dict() if m.startswith('phasejax')],
}))
"""
    found = run_python(code)
    assert found["modules"] > 10
    assert not found["backend"]
    assert not found["flags"]


@pytest.mark.parametrize("name", phasejax.__all__)
def test_public_name_exists(name):
    assert name in dir(phasejax)
    assert getattr(phasejax, name) is not None


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Qwen4'"):
        phasejax.Qwen4  # noqa: B018


def test_checkers_and_interpreter_see_the_same_public_names():
    tree = ast.parse((ROOT / "phasejax/__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    nodes = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    imported = {alias.name: node.module for node in nodes for alias in node.names}
    assert imported == phasejax._HOME
    assert sorted([*imported, "__version__"]) == phasejax.__all__


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.10.2", (0, 10, 2)),
        ("0.12.0.1", (0, 12, 0, 1)),
        ("0.11.0.dev20260101", (0, 11, 0)),
        ("?", ()),
    ],
)
def test_parse_version(text, version):
    assert _compat.parse_version(text) == version


@pytest.mark.parametrize("installed", ["0.10.1", "0.9.2.1"])
def test_old_jax_is_refused(installed, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: installed)
    with pytest.raises(ImportError, match=f"jax {installed} is installed, .* jax >= 0.10.2: pip"):
        _compat.jax_version.__wrapped__()


@pytest.mark.parametrize("installed", ["0.10.2", "0.11.2", "0.12.0.1"])
def test_newer_jax_is_accepted(installed, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: installed)
    assert _compat.jax_version.__wrapped__() >= _compat.OLDEST_JAX


def test_missing_jax_is_said(monkeypatch):
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(ImportError, match="JAX is not installed, .* pip install"):
        _compat.jax_version.__wrapped__()


# The test bed itself.


def test_our_own_warnings_are_errors(pytestconfig):
    every = pytestconfig.getini("filterwarnings")
    filters = [f for f in every if f.count(":") == 3]  # those of a module
    for package in ("phasejax", "pallas_kernels", "scripts", "configs"):
        assert any(re.match(f.split(":")[3], f"{package}.module") for f in filters)
        assert any(re.match(f.split(":")[3], package) for f in filters)
    assert not any(re.match(f.split(":")[3], "jax.numpy") for f in filters)


def test_a_warning_of_our_own_module_fails_the_test():
    import warnings

    with pytest.raises(DeprecationWarning):
        warnings.warn_explicit("old", DeprecationWarning, "x.py", 1, module="phasejax.models.qwen3")


def test_shapes_are_checked():
    pytest.importorskip("beartype")
    import jax.numpy as jnp
    from jaxtyping import TypeCheckError

    from phasejax.attention.rope import rotate

    with pytest.raises(TypeCheckError):
        rotate(jnp.zeros((2, 5, 1, 8)), jnp.arange(4), theta=1e4, rotary_dim=8)


# Documents.


def documents() -> list[Path]:
    return [path for path in project_files() if path.suffix in {".md", ".ipynb"}]


def test_every_command_of_the_documents_is_in_the_makefile():
    targets = makefile_targets()
    for path in documents():
        text = path.read_text()
        code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))
        for target in re.findall(r"\bmake ([a-z][a-z-]*)", code):
            assert target in targets, f"{path.relative_to(ROOT)} says `make {target}`"


def test_every_script_that_is_named_exists():
    for path in [ROOT / "Makefile", *documents()]:
        for script in re.findall(r"-m (scripts\.\w+)", path.read_text()):
            file = ROOT / f"{script.replace('.', '/')}.py"
            assert file.is_file(), f"{path.relative_to(ROOT)} says `python -m {script}`"


def test_make_help_lists_every_target():
    listed = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert set(re.findall(r"^make ([a-z-]+)", listed, re.MULTILINE)) == makefile_targets()


FORBIDDEN = {
    "a path of one machine": r"(?<![\w.])/(work|root|opt|home/\w+)/",
    "a folder that is not in the repository": r"(?<![\w/.-])shared/",
    "a package index": r"index-url|find-links|file:/{3}|@ file:|pypi\.org/simple",
    "an issue's number": r"(?i)\bissues? #?\d+\b",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_names(what):
    this = Path(__file__).resolve()
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in project_files()
        if path.resolve() != this
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(FORBIDDEN[what], line)
    ]
    assert not found, "\n".join([what, *found])
