# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What a reader must know before using the numbers of a report."""

from typing import Any

from phasejax.analysis.claims.claim import LEVEL, controls_of
from phasejax.analysis.verdicts import AT_CEILING, by_variant, is_learned, name_of


def caveats(summary: dict[str, Any]) -> list[str]:
    """What a reader must know before using the numbers, in sentences."""
    runs = summary["runs"]
    lines = [
        "The task is a synthetic record lookup at laptop scale, not the paper's task: models of"
        " under a million parameters here, 0.6 billion and 100 billion tokens there. Compare"
        " whether there is a period and where, not how large the gap is."
    ]
    if min(map(len, by_variant(runs).values())) < 2:
        lines.append(
            "Some variants have a single seed, and this report does not rank variants: in the"
            " paper four seeds of one architecture have gaps from 36.6 to 75.3 points. Intervals"
            " of a run are over documents, and say nothing about other seeds."
        )
    if len(runs) > 1:
        lines.append(
            f"{len(runs)} runs are scanned at the 5% level each, so without any effect about"
            f" {LEVEL * len(runs):.1f} of them would show a period by chance."
        )
    learned = {entry["recipe"] for entry in controls_of(summary) if is_learned(entry)}
    alone = sorted({entry["recipe"] for entry in runs} - learned)
    if alone:
        lines.append(
            f"No full-attention control learned the task with recipe {', '.join(alone)}, so a"
            " period of its runs is not held against a model without compression."
        )
    broken = [name_of(entry) for entry in runs if not is_learned(entry)]
    if broken:
        lines.append(f"Did not learn the task and can show nothing: {', '.join(broken)}.")
    full = [name_of(e) for e in runs if e["verdict"] == AT_CEILING]
    if full:
        lines.append(
            "Answer nearly everything at every residue, so that no dip can be seen:"
            f" {', '.join(full)}."
        )
    return lines
