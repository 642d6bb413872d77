# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Names of a package that import their module, and what it needs, when they are first used."""

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy_names(
    package: str, home: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package (PEP 562).

    Args:
        package: its name.
        home: the module that each public name comes from.
    """
    names = vars(sys.modules[package])

    def get(name: str) -> object:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        names[name] = getattr(importlib.import_module(home[name]), name)
        return names[name]

    def list_names() -> list[str]:
        return sorted({*names, *home})

    return get, list_names
