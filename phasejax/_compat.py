# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The one place that knows which release of JAX is installed.

===========  ================  =======================================================
Python       JAX               state
===========  ================  =======================================================
3.11         0.10.2 (newest)   what the lock pins and the tests run
3.12 and up  0.11, 0.12        allowed and written for, not run by the project's tests
===========  ================  =======================================================

Code that must differ between releases asks `jax_version()` here, and nowhere else.
"""

import functools
import importlib.metadata
import re

OLDEST_JAX = (0, 10, 2)


def parse_version(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: "0.12.0.1" is (0, 12, 0, 1), "0.11.0.dev2" (0, 11, 0)."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, match.group().split("."))) if match else ()


@functools.cache
def jax_version() -> tuple[int, ...]:
    """Version of the installed JAX, read from its metadata so that JAX is not imported.

    Raises:
        ImportError: if JAX is missing or older than what phasejax is written for.
    """
    oldest = ".".join(map(str, OLDEST_JAX))
    remedy = f"phasejax needs jax >= {oldest}: pip install --upgrade 'jax>={oldest}'"
    try:
        text = importlib.metadata.version("jax")
    except importlib.metadata.PackageNotFoundError as error:
        raise ImportError(f"JAX is not installed, but {remedy}", name="jax") from error
    version = parse_version(text)
    if version < OLDEST_JAX:
        raise ImportError(f"jax {text} is installed, but {remedy}", name="jax")
    return version
