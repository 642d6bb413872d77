# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of configuration fields: every message names the field, its value and the remedy."""

import difflib
import numbers
import sys
import types
import typing
from collections.abc import Iterable
from typing import Any

WORDS = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text"}


def nearest(name: str, known: Iterable[str]) -> str:
    """The remedy for an unknown name: the closest known one, or all of them."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(known)}."


def check_fields(config: Any) -> None:
    """Checks every field of a config dataclass against its annotation.

    Known are bool, int (which no bool is), float (finite; an int will do), str, Literal, unions,
    tuples and other classes.

    Raises:
        ValueError: for the first field whose value is of another kind.
    """
    for name, hint in typing.get_type_hints(type(config)).items():
        value = getattr(config, name)
        if _fits(value, hint):
            continue
        if typing.get_origin(hint) is typing.Literal and isinstance(value, str):
            choices = typing.get_args(hint)
            raise ValueError(
                f"{name}={value!r} is not one of {', '.join(choices)}: {nearest(value, choices)}"
            )
        raise ValueError(
            f"{name}={value!r} ({type(value).__name__}), but it must be {_words(hint)}: change"
            f" {name}."
        )


def check_at_least(config: Any, name: str, low: float) -> None:
    """Checks that a numeric field is not below its minimum."""
    value = getattr(config, name)
    if value < low:
        raise ValueError(f"{name}={value}, but it must be at least {low}: raise {name}.")


def check_count(name: str, value: Any, low: int, high: int | None = None) -> None:
    """Checks that an argument is a whole number within its bounds."""
    bounds = f"at least {low}" if high is None else f"between {low} and {high}"
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise ValueError(f"{name}={value!r}, but it must be a whole number {bounds}: round it.")
    if int(value) < low or (high is not None and int(value) > high):
        raise ValueError(f"{name}={value}, but it must be {bounds}: change {name}.")


def check_above(config: Any, name: str, low: float) -> None:
    """Checks that a numeric field is above a limit that it may not reach."""
    value = getattr(config, name)
    if value <= low:
        raise ValueError(f"{name}={value}, but it must be above {low}: raise {name}.")


def check_below(config: Any, name: str, high: float) -> None:
    """Checks that a numeric field is below a limit that it may not reach."""
    value = getattr(config, name)
    if value >= high:
        raise ValueError(f"{name}={value}, but it must be below {high}: lower {name}.")


def _fits(value: Any, hint: Any) -> bool:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return any(value == choice and type(value) is type(choice) for choice in parts)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        parts = parts[:1] * len(value) if parts[1:] == (...,) else parts
        return len(parts) == len(value) and all(map(_fits, value, parts))
    if hint in (int, float) and isinstance(value, bool):
        return False
    if hint is float:
        return isinstance(value, int | float) and bool(abs(value) <= sys.float_info.max)
    return isinstance(value, hint)


def _words(hint: Any) -> str:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return f"one of {', '.join(map(str, parts))}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_words, parts))
    if origin is tuple:
        length = "any length" if parts[1:] == (...,) else str(len(parts))
        return f"a tuple of {length}, each item {_words(parts[0])}"
    return (
        "None" if hint is type(None) else WORDS.get(hint, f"of {getattr(hint, '__name__', hint)}")
    )
