# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks measure with."""

import time
from collections.abc import Callable
from typing import Any


def median_seconds(function: Callable[[], Any], repeats: int) -> float:
    """Median wall time of a call, after one that is not counted."""
    function()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]
