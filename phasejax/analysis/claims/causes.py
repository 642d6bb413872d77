# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Claims about where the dips come from: the boundary of a chunk, and fixed gates."""

from typing import Any

from phasejax.analysis.claims.claim import NOT_TESTED, Claim, compressed, status_of
from phasejax.analysis.verdicts import by_variant, extent, follows, is_learned


def not_only_boundary(summary: dict[str, Any]) -> Claim:
    """Without overlap: phases whose key and value share an entry differ among themselves."""
    title = "The boundary is not the whole story: phases away from it differ too."
    runs = [
        entry
        for entry in compressed(summary)
        if entry["window"] == entry["stride"] and entry["gap_straddle_free"] is not None
    ]
    able = [entry for entry in runs if follows(entry)]
    if not able:
        text = "No run without overlap shows the period and has two phases away from the boundary."
        return Claim("boundary", title, NOT_TESTED, text)
    hits = [entry for entry in able if entry["gap_straddle_free_low"] > 0]
    parts = [
        f"{variant} {extent(entry['gap_straddle_free'] for entry in group)}"
        f" (interval above 0 in {sum(entry in hits for entry in group)} of {len(group)})"
        for variant, group in by_variant(able).items()
    ]
    text = "Gap in points over phases whose key and value share an entry: " + "; ".join(parts) + "."
    return Claim("boundary", title, status_of(len(hits), len(able)), text)


def _fixed_heads(entry: dict[str, Any]) -> tuple[int, int]:
    """Heads whose key gates have a static effective number below 0.6 W, and heads in all."""
    rows = [row for row in entry["gates"] or () if row["branch"] == "key"]
    static = [value for row in rows for value in row["static"]]
    return sum(value < 0.6 * entry["window"] for value in static), len(static)


def gates_specialise(summary: dict[str, Any]) -> Claim:
    """Some learned gate has a static effective number below 0.6 W (paper, section "Gates")."""
    title = "Some heads' gates favour fixed offsets, whatever the input."
    able = [
        entry
        for entry in filter(is_learned, compressed(summary))
        if "uniform averaging" not in entry["differences"] and _fixed_heads(entry)[1]
    ]
    if not able:
        return Claim("gates", title, NOT_TESTED, "No gates of a learned run were captured.")
    parts = []
    for variant, group in by_variant(able).items():
        few, heads = zip(*map(_fixed_heads, group), strict=True)
        parts.append(f"{variant}: {', '.join(map(str, few))} of {heads[0]}")
    text = "Heads with fewer than 0.6 W effective offsets, by run: " + "; ".join(parts) + "."
    hits = sum(_fixed_heads(entry)[0] > 0 for entry in able)
    return Claim("gates", title, status_of(hits, len(able)), text)
