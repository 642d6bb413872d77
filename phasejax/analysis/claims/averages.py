# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Claims about what an average hides: that over residues, that over tokens, and that of a seed."""

from typing import Any

from phasejax.analysis.claims.claim import (
    NOT_SHOWN,
    NOT_TESTED,
    SHOWN,
    Claim,
    compressed,
    controls_of,
)
from phasejax.analysis.verdicts import by_variant, is_learned, name_of, percent


def mean_hides_worst(summary: dict[str, Any]) -> Claim:
    """Some run has at least 80% of its control's mean and at most half of its worst residue."""
    title = "The mean can look normal while the worst residue is far below the control's."
    rows = []
    for entry in filter(is_learned, compressed(summary)):
        controls = [control for control in controls_of(summary, entry) if is_learned(control)]
        if controls:
            mean = sum(control["mean"] for control in controls) / len(controls)
            worst = sum(control["worst"] for control in controls) / len(controls)
            rows.append((entry, mean, worst))
    if not rows:
        return Claim("mean", title, NOT_TESTED, "No pair of a run and its control has learned.")
    normal = [row for row in rows if row[0]["mean"] >= 0.8 * row[1]]
    hidden = [row for row in normal if row[0]["worst_high"] <= 0.5 * row[2]]
    entry, mean, worst = max(hidden or rows, key=lambda row: row[0]["gap"])
    text = (
        f"{len(hidden)} of {len(rows)} runs have at least 80% of the control's mean and at most"
        f" half of its worst residue. {'Example' if hidden else 'Largest gap'}, {name_of(entry)}:"
        f" mean {percent(entry['mean'])}% against {percent(mean)}%, worst"
        f" {percent(entry['worst'])}% against {percent(worst)}%."
    )
    return Claim("mean", title, SHOWN if hidden else NOT_SHOWN, text)


def loss_hides_it(_: dict[str, Any]) -> Claim:
    """Not something that this task can show."""
    text = (
        "The validation loss here is the loss of the lookup itself, so it sees the dips. The claim"
        " is about language modelling, where lookups are a small part of the loss."
    )
    return Claim("loss", "Validation loss can look normal.", NOT_TESTED, text)


def seeds_move_profile(summary: dict[str, Any]) -> Claim:
    """Two seeds of a variant have gaps whose intervals do not overlap."""
    title = "Training seeds move the profile, so one seed cannot rank variants."
    groups = by_variant(filter(is_learned, compressed(summary)))
    several = {name: group for name, group in groups.items() if len(group) > 1}
    if not several:
        return Claim("seeds", title, NOT_TESTED, "Each variant was trained with one seed.")
    apart = [
        group
        for group in several.values()
        if min(e["gap_high"] for e in group) < max(e["gap_low"] for e in group)
    ]
    gaps = {name: [entry["gap"] for entry in group] for name, group in several.items()}
    widest = max(gaps, key=lambda name: max(gaps[name]) - min(gaps[name]))
    text = (
        f"In {len(apart)} of {len(several)} variants two seeds have gaps with disjoint intervals."
        f" Widest, {widest}: gaps of {', '.join(map(percent, gaps[widest]))} points."
    )
    return Claim("seeds", title, SHOWN if apart else NOT_SHOWN, text)
