# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks measure with."""

import time
from collections.abc import Callable, Sequence
from typing import Any


def seconds_of(function: Callable[[], Any]) -> float:
    """Wall time of a call."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def medians_in_turns(clocks: Sequence[Callable[[], float]], repeats: int) -> list[float]:
    """Median of what each clock measures; they take turns, so that a busy machine slows all."""
    times = [[clock() for clock in clocks] for _ in range(repeats)]
    return [sorted(column)[repeats // 2] for column in zip(*times, strict=True)]


def median_seconds(function: Callable[[], Any], repeats: int) -> float:
    """Median wall time of a call, after one that is not counted."""
    function()
    return medians_in_turns([lambda: seconds_of(function)], repeats)[0]
