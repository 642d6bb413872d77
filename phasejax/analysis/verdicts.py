# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What one run showed, in words, from its entry of a summary."""

from collections.abc import Iterable
from typing import Any

Entry = dict[str, Any]

CEILING = 0.97  # accuracy of the worst residue
NEAR_CHANCE = 0.15  # of the way from naming any value of the context to answering all
NOT_LEARNED = "not learned"
AT_CEILING = "at the ceiling, not shown"
NO_PERIOD = "no period"


def verdict(block: dict[str, Any], chance: float | None, control: bool = False) -> str:
    """What a run can be said to have shown, in words.

    Args:
        block: of summarize_evaluation.
        chance: accuracy without a lookup; None if unknown.
        control: whether the run is a control, for which no period is what is expected.

    Returns:
        "not learned" if no residue is far above chance; "at the ceiling, not shown" if no period
        was found and the worst residue leaves no room for one; else the period or "no period".
    """
    if chance is not None:
        bar = chance + NEAR_CHANCE * (1 - chance)
        if max(block["accuracy"]) < bar or (block["period"] is None and block["mean"] < bar):
            return NOT_LEARNED
    if block["period"] is not None:
        return f"period {block['period']}"
    return AT_CEILING if block["worst"] >= CEILING and not control else NO_PERIOD


def percent(value: float) -> str:
    """A fraction as percent: one decimal below 10%."""
    return f"{100 * value:.1f}" if abs(value) < 0.0995 else f"{100 * value:.0f}"


def p_text(p: float, bound: bool = False) -> str:
    """A p-value as a reader wants it, or an upper bound of several."""
    number = f"{p:.1g}" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"
    return f"p {'≤' if bound else '='} {number}"


def name_of(entry: Entry) -> str:
    """Name with seed, such as "w8s8 (seed 1)"."""
    return f"{entry['name']} (seed {entry['seed']})"


def is_learned(entry: Entry) -> bool:
    """Whether the run found the lookup at all."""
    return entry["verdict"] != NOT_LEARNED


def can_show(entry: Entry) -> bool:
    """Whether a dip, if there were one, could be seen."""
    return entry["verdict"] not in (NOT_LEARNED, AT_CEILING)


def follows(entry: Entry) -> bool:
    """Whether the run shows a period, and it is the stride."""
    return can_show(entry) and entry["period"] is not None and entry["period"] == entry["stride"]


def result(entry: Entry) -> str:
    """One run's result in a few words."""
    if not can_show(entry):
        return entry["verdict"]
    found = "no period" if entry["period"] is None else f"period {entry['period']}"
    return f"{found} ({p_text(entry['p_value'])})"


def outcome(entry: Entry) -> str:
    """The result with the run's name."""
    return f"{name_of(entry)}: {result(entry)}"


def by_variant(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Groups the seeds of one variant and recipe, in their order.

    Keys are titles: the variant, and in brackets its recipe where the entries have several.
    """
    entries = list(entries)
    several = len({entry["recipe"] for entry in entries}) > 1
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        title = entry["variant"] + (f" ({entry['recipe']})" if several else "")
        groups.setdefault(title, []).append(entry)
    return groups


def tally(entries: Iterable[Entry]) -> str:
    """Results of runs, one phrase a variant; runs without the period of their stride are named."""
    parts = []
    for variant, group in by_variant(entries).items():
        if len(group) == 1:
            parts.append(f"{variant}: {result(group[0])}")
            continue
        hits = [entry for entry in group if follows(entry)]
        rest = [outcome(entry) for entry in group if entry not in hits]
        text = f"{variant}: period {group[0]['stride']} in {len(hits)} of {len(group)}"
        if hits:
            text += f" ({p_text(max(entry['p_value'] for entry in hits), len(hits) > 1)})"
        parts.append(text + (f", but {', '.join(rest)}" if rest else ""))
    return "; ".join(parts) + "."


def extent(values: Iterable[float]) -> str:
    """One number in percent, or the range of several."""
    numbers = sorted(values)
    low, high = percent(numbers[0]), percent(numbers[-1])
    return low if low == high else f"{low} to {high}"
