# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Aggregation over training seeds."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy import stats

from phasejax.analysis.verdicts import by_variant


def between_seeds(values: Sequence[float]) -> dict[str, Any]:
    """Mean and range over training seeds, with Student's 95% interval of the mean within [0, 1]."""
    low = high = None
    if len(values) > 1:
        centre, error = float(np.mean(values)), float(stats.sem(values))
        half = float(stats.t.ppf(0.975, len(values) - 1)) * error
        low, high = max(centre - half, 0.0), min(centre + half, 1.0)
    return {
        "mean": float(np.mean(values)),
        "low": low,
        "high": high,
        "smallest": min(values),
        "largest": max(values),
    }


def summarize_variants(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Groups entries by variant and recipe: intervals here are between seeds, not documents."""
    return [
        {
            "variant": group[0]["variant"],
            "recipe": group[0]["recipe"],
            "runs": [f"{entry['name']}:{entry['seed']}" for entry in group],
            "seeds": [entry["seed"] for entry in group],
            "periods": [entry["period"] for entry in group],
            "verdicts": [entry["verdict"] for entry in group],
            **{key: between_seeds([e[key] for e in group]) for key in ("mean", "worst", "gap")},
        }
        for group in by_variant(entries).values()
    ]
