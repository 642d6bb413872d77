# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Claims that there is a period: the stride's with compression, none without."""

from collections.abc import Callable
from typing import Any

from phasejax.analysis.claims.claim import (
    LEVEL,
    NOT_SHOWN,
    NOT_TESTED,
    PARTLY,
    SHOWN,
    Claim,
    compressed,
    controls_of,
    status_of,
)
from phasejax.analysis.verdicts import (
    Entry,
    can_show,
    extent,
    follows,
    is_learned,
    name_of,
    outcome,
    p_text,
    percent,
    tally,
)

# Between the gaps of the paper's controls, 6.1 points at most, and those of its compressed runs,
# 18.7 points at least.
FLAT = 0.10


def flatness_bound(summary: dict[str, Any]) -> float:
    """What the gap of a control must stay below: FLAT, and every gap that is said to be periodic.

    A p-value alone cannot show that there is no period, since few documents make any p large.
    """
    return min([FLAT, *(entry["gap"] for entry in compressed(summary) if follows(entry))])


def control_is_flat(summary: dict[str, Any]) -> Claim:
    """No control has a period, at a level divided by their number, and no gap reaches the bound."""
    title = "Full attention, trained the same way, shows no period."
    controls = controls_of(summary)
    if not controls:
        return Claim("control", title, NOT_TESTED, "No full-attention control was run.")
    learned = [entry for entry in controls if is_learned(entry)]
    failed = [name_of(entry) for entry in controls if not is_learned(entry)]
    if not learned:
        return Claim("control", title, NOT_SHOWN, f"Not learned: {', '.join(failed)}.")
    periodic = [entry for entry in learned if entry["p_value"] * len(learned) <= LEVEL]
    bound = flatness_bound(summary)
    wide = [name_of(entry) for entry in learned if entry["gap_high"] >= bound]
    smallest = p_text(min(entry["p_value"] for entry in learned))
    text = (
        f"{len(learned)} learned, {'smallest ' if len(learned) > 1 else ''}{smallest}: gap of"
        f" {extent(entry['gap'] for entry in learned)} points where noise alone gives"
        f" {extent(entry['gap_null'] for entry in learned)}; the true gap is at most"
        f" {percent(max(entry['gap_high'] for entry in learned))} points, and must be below"
        f" {percent(bound)}, "
    )
    text += (
        "between the gaps of the paper's controls and of its compressed runs."
        if bound == FLAT
        else "the smallest gap of a run here that has the period of its stride."
    )
    if periodic:
        text += f" With a period: {', '.join(map(outcome, periodic))}."
    if wide:
        text += f" Not bounded so, which more documents may do: {', '.join(wide)}."
    if failed:
        text += f" Not learned: {', '.join(failed)}."
    covered = {entry["recipe"] for entry in learned} == {entry["recipe"] for entry in controls}
    status = NOT_SHOWN if periodic or wide else SHOWN if covered else PARTLY
    return Claim("control", title, status, text)


def period_is_stride(summary: dict[str, Any]) -> Claim:
    """The plain geometries: the period must move with the stride."""
    title = "The period of the dips is the stride of the compressor, and moves with it."
    plain = [entry for entry in compressed(summary) if not entry["differences"]]
    if len({entry["stride"] for entry in plain}) < 2:
        return Claim("stride", title, NOT_TESTED, "Fewer than two strides were run.")
    hits = [entry for entry in plain if follows(entry)]
    moved = len({entry["stride"] for entry in hits}) > 1
    return Claim("stride", title, status_of(len(hits) * moved, len(plain)), tally(plain))


def survives(
    key: str, title: str, chosen: Callable[[Entry], bool]
) -> Callable[[dict[str, Any]], Claim]:
    """A claim that runs of some kind have the period of their stride."""

    def claim(summary: dict[str, Any]) -> Claim:
        runs = [entry for entry in compressed(summary) if chosen(entry)]
        if not runs:
            return Claim(key, title, NOT_TESTED, "No such run in this report.")
        return Claim(key, title, status_of(sum(map(follows, runs)), len(runs)), tally(runs))

    return claim


def only(*words: str) -> Callable[[Entry], bool]:
    """Chooses runs whose differences from the default are exactly these."""
    return lambda entry: entry["differences"] == list(words)


def in_sequence_agrees(summary: dict[str, Any]) -> Claim:
    """Where prefix padding shows the period, in-sequence padding does too."""
    title = "The period is also found when the other records do not move with the target."
    runs = [
        entry
        for entry in compressed(summary)
        if entry["in_sequence"] is not None and follows(entry)
    ]
    if not runs:
        text = "No run with a period under prefix padding was evaluated with in-sequence padding."
        return Claim("in_sequence", title, NOT_TESTED, text)
    hits = [
        entry
        for entry in runs
        if entry["in_sequence"]["period"] == entry["stride"] and can_show(entry["in_sequence"])
    ]
    rest = [
        f"{name_of(entry)}: {entry['in_sequence']['verdict']}"
        for entry in runs
        if entry not in hits
    ]
    text = f"The stride is found in {len(hits)} of {len(runs)} runs"
    text += f"; {'; '.join(rest)}." if rest else "."
    return Claim("in_sequence", title, status_of(len(hits), len(runs)), text)
