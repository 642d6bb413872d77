# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of configuration fields: every message names the field, its value and the remedy."""

import difflib
import typing
from collections.abc import Iterable
from typing import Any


def nearest(name: str, known: Iterable[str]) -> str:
    """The remedy for an unknown name: the closest known one, or all of them."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(known)}."


def check_choices(config: Any) -> None:
    """Checks every field that is annotated as a Literal."""
    for name, annotation in typing.get_type_hints(type(config)).items():
        if typing.get_origin(annotation) is not typing.Literal:
            continue
        value, choices = getattr(config, name), typing.get_args(annotation)
        if value not in choices:
            remedy = nearest(str(value), map(str, choices))
            raise ValueError(
                f"{name}={value!r} is not one of {', '.join(map(str, choices))}: {remedy}"
            )


def check_at_least(config: Any, name: str, low: float) -> None:
    """Checks that a numeric field is not below its minimum."""
    value = getattr(config, name)
    if value < low:
        raise ValueError(f"{name}={value}, but it must be at least {low}: raise {name}.")
