# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Digests of what a checkpoint holds: what was saved is what is loaded, or it is said."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np


def digest(array: Any) -> str:
    """SHA-256 of an array's dtype, shape and bytes, as hexadecimal."""
    host = np.ascontiguousarray(array)
    found = hashlib.sha256(f"{host.dtype} {host.shape} ".encode())
    found.update(host.reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def tree_digests(tree: Any) -> dict[str, str | None]:
    """Digest of every leaf by its path in the tree; one leaf at a time is copied to the host.

    A leaf that is spread over several processes has None, because none of them holds it whole.
    """
    return {
        jax.tree_util.keystr(path): digest(leaf)
        if leaf.is_fully_addressable or leaf.is_fully_replicated
        else None
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def check_digests(tree: Any, wanted: Mapping[str, str | None]) -> None:
    """Checks that a tree has the leaves with these digests; None fits any.

    Raises:
        ValueError: naming a leaf that differs.
    """
    found = tree_digests(tree)
    if found.keys() != wanted.keys():
        raise ValueError(f"{min(found.keys() ^ wanted.keys())} was not saved, or is not loaded.")
    for path in found:
        if None not in (found[path], wanted[path]) and found[path] != wanted[path]:
            raise ValueError(f"{path} is not what was saved: its SHA-256 differs.")


def sealed(content: Mapping[str, Any]) -> str:
    """A text that holds plain JSON and its digest."""
    return json.dumps({"content": content, "sha256": _text_digest(content)}, indent=1) + "\n"


def unsealed(text: str) -> dict[str, Any]:
    """What `sealed` was given.

    Raises:
        ValueError: if it or its digest was altered, or cut off.
    """
    seal = json.loads(text)
    if not isinstance(seal, dict) or seal.get("sha256") != _text_digest(seal.get("content")):
        raise ValueError("its SHA-256 differs from what was written.")
    return seal["content"]


def _text_digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
