# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The paper's claims, each held against a summary: shown, shown in part, not shown, not tested.

The rules are fixed here, before any run, and use only numbers of the summary. A run that did not
learn the task, or answers everything, can show nothing and is named as such.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from phasejax.analysis.verdicts import (
    AT_CEILING,
    Entry,
    by_variant,
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

SHOWN, PARTLY, NOT_SHOWN, NOT_TESTED = "shown", "shown in part", "not shown", "not tested"
LEVEL = 0.05


@dataclasses.dataclass(frozen=True)
class Claim:
    """One claim of the paper and what became of it.

    Attributes:
        key: short name.
        title: the claim, a sentence.
        status: SHOWN, PARTLY, NOT_SHOWN or NOT_TESTED.
        text: the numbers behind the status.
    """

    key: str
    title: str
    status: str
    text: str

    def as_dict(self) -> dict[str, str]:
        """Plain JSON."""
        return dataclasses.asdict(self)


def compressed(summary: dict[str, Any]) -> list[Entry]:
    """Entries of all runs but the controls."""
    return [entry for entry in summary["runs"] if not entry["control"]]


def controls_of(summary: dict[str, Any], entry: Entry | None = None) -> list[Entry]:
    """Controls, of one entry's recipe if given."""
    return [
        run
        for run in summary["runs"]
        if run["control"] and (entry is None or run["recipe"] == entry["recipe"])
    ]


def control_is_flat(summary: dict[str, Any]) -> Claim:
    """Full attention shows no period; the level is divided by the number of controls."""
    title = "Full attention, trained the same way, shows no period."
    controls = controls_of(summary)
    if not controls:
        return Claim("control", title, NOT_TESTED, "No full-attention control was run.")
    learned = [entry for entry in controls if is_learned(entry)]
    failed = [name_of(entry) for entry in controls if not is_learned(entry)]
    if not learned:
        return Claim("control", title, NOT_SHOWN, f"Not learned: {', '.join(failed)}.")
    periodic = [entry for entry in learned if entry["p_value"] * len(learned) <= LEVEL]
    smallest = p_text(min(entry["p_value"] for entry in learned))
    text = (
        f"{len(learned)} learned, {'smallest ' if len(learned) > 1 else ''}{smallest}: gap of"
        f" {extent(entry['gap'] for entry in learned)} points where noise alone gives"
        f" {extent(entry['gap_null'] for entry in learned)}; the true gap is at most"
        f" {percent(max(entry['gap_high'] for entry in learned))} points."
    )
    if periodic:
        text += f" With a period: {', '.join(map(outcome, periodic))}."
    if failed:
        text += f" Not learned: {', '.join(failed)}."
    covered = {entry["recipe"] for entry in learned} == {entry["recipe"] for entry in controls}
    status = NOT_SHOWN if periodic else SHOWN if covered else PARTLY
    return Claim("control", title, status, text)


def period_is_stride(summary: dict[str, Any]) -> Claim:
    """The plain geometries: the period must move with the stride."""
    title = "The period of the dips is the stride of the compressor, and moves with it."
    plain = [entry for entry in compressed(summary) if not entry["differences"]]
    strides = {entry["stride"] for entry in plain}
    if len(strides) < 2:
        return Claim("stride", title, NOT_TESTED, "Fewer than two strides were run.")
    hits = [entry for entry in plain if can_show(entry) and follows(entry)]
    moved = len({entry["stride"] for entry in hits})
    status = SHOWN if len(hits) == len(plain) else PARTLY if moved > 1 else NOT_SHOWN
    return Claim("stride", title, status, tally(plain))


def survives(
    key: str, title: str, chosen: Callable[[Entry], bool]
) -> Callable[[dict[str, Any]], Claim]:
    """A claim that runs of some kind have the period of their stride."""

    def claim(summary: dict[str, Any]) -> Claim:
        runs = [entry for entry in compressed(summary) if chosen(entry)]
        if not runs:
            return Claim(key, title, NOT_TESTED, "No such run in this report.")
        hits = [entry for entry in runs if can_show(entry) and follows(entry)]
        status = SHOWN if len(hits) == len(runs) else PARTLY if hits else NOT_SHOWN
        return Claim(key, title, status, tally(runs))

    return claim


def only(*words: str) -> Callable[[Entry], bool]:
    """Chooses runs whose differences from the default are exactly these."""
    return lambda entry: entry["differences"] == list(words)


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


def not_only_boundary(summary: dict[str, Any]) -> Claim:
    """Without overlap: phases whose key and value share an entry differ among themselves."""
    title = "The boundary is not the whole story: phases away from it differ too."
    runs = [
        entry
        for entry in compressed(summary)
        if entry["window"] == entry["stride"] and entry["gap_straddle_free"] is not None
    ]
    able = [entry for entry in runs if can_show(entry) and follows(entry)]
    if not able:
        text = "No run without overlap shows the period and has two phases away from the boundary."
        return Claim("boundary", title, NOT_TESTED, text)
    hits = [entry for entry in able if entry["gap_straddle_free_low"] > 0]
    parts = [
        f"{variant} {extent(entry['gap_straddle_free'] for entry in group)}"
        f" (interval above 0 in {sum(entry in hits for entry in group)} of {len(group)})"
        for variant, group in by_variant(able).items()
    ]
    status = SHOWN if len(hits) == len(able) else PARTLY if hits else NOT_SHOWN
    text = "Gap in points over phases whose key and value share an entry: " + "; ".join(parts) + "."
    return Claim("boundary", title, status, text)


def in_sequence_agrees(summary: dict[str, Any]) -> Claim:
    """Where prefix padding shows the period, in-sequence padding does too."""
    title = "The period is also found when the other records do not move with the target."
    runs = [
        entry
        for entry in compressed(summary)
        if entry["in_sequence"] is not None and can_show(entry) and follows(entry)
    ]
    if not runs:
        text = "No run with a period under prefix padding was evaluated with in-sequence padding."
        return Claim("in_sequence", title, NOT_TESTED, text)
    hits = [entry for entry in runs if entry["in_sequence"]["period"] == entry["stride"]]
    rest = [
        f"{name_of(entry)}: {entry['in_sequence']['verdict']}"
        for entry in runs
        if entry not in hits
    ]
    text = f"The stride is found in {len(hits)} of {len(runs)} runs"
    status = SHOWN if len(hits) == len(runs) else PARTLY if hits else NOT_SHOWN
    return Claim("in_sequence", title, status, text + (f"; {'; '.join(rest)}." if rest else "."))


def seeds_move_profile(summary: dict[str, Any]) -> Claim:
    """Two seeds of a variant have gaps whose intervals do not overlap."""
    title = "Training seeds move the profile, so one seed cannot rank variants."
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in filter(is_learned, compressed(summary)):
        groups.setdefault((entry["variant"], entry["recipe"]), []).append(entry)
    several = {key[0]: group for key, group in groups.items() if len(group) > 1}
    if not several:
        return Claim("seeds", title, NOT_TESTED, "Each variant was trained with one seed.")
    apart = {
        variant: group
        for variant, group in several.items()
        if min(e["gap_high"] for e in group) < max(e["gap_low"] for e in group)
    }
    widest = max(
        several, key=lambda v: max(e["gap"] for e in several[v]) - min(e["gap"] for e in several[v])
    )
    gaps = ", ".join(percent(entry["gap"]) for entry in several[widest])
    text = (
        f"In {len(apart)} of {len(several)} variants two seeds have gaps with disjoint intervals."
        f" Widest, {widest}: gaps of {gaps} points."
    )
    return Claim("seeds", title, SHOWN if apart else NOT_SHOWN, text)


def gates_specialise(summary: dict[str, Any]) -> Claim:
    """Some learned gate has a static effective number below 0.6 W (paper, section "Gates")."""
    title = "Some heads' gates favour fixed offsets, whatever the input."
    counts = []
    for entry in filter(is_learned, compressed(summary)):
        keys = [row for row in entry["gates"] or () if row["branch"] == "key"]
        static = [value for row in keys for value in row["static"]]
        if static and "uniform averaging" not in entry["differences"]:
            few = sum(value < 0.6 * entry["window"] for value in static)
            counts.append((few, len(static), name_of(entry)))
    if not counts:
        return Claim("gates", title, NOT_TESTED, "No gates of a learned run were captured.")
    text = "Heads with fewer than 0.6 W effective offsets: " + "; ".join(
        f"{name}: {few} of {total}" for few, total, name in counts
    )
    hits = sum(few > 0 for few, _, _ in counts)
    status = SHOWN if hits == len(counts) else PARTLY if hits else NOT_SHOWN
    return Claim("gates", title, status, text + ".")


def loss_hides_it(_: dict[str, Any]) -> Claim:
    """Not something that this task can show."""
    text = (
        "The validation loss here is the loss of the lookup itself, so it sees the dips. The claim"
        " is about language modelling, where lookups are a small part of the loss."
    )
    return Claim("loss", "Validation loss can look normal.", NOT_TESTED, text)


CLAIMS: Sequence[Callable[[dict[str, Any]], Claim]] = (
    control_is_flat,
    period_is_stride,
    survives(
        "overlap",
        "Overlapping windows have it too, at their stride.",
        lambda entry: entry["window"] > entry["stride"] and not entry["differences"],
    ),
    survives("uniform", "It survives uniform averaging, without gates.", only("uniform averaging")),
    survives("no_rope", "It survives without RoPE.", only("no RoPE")),
    survives("no_qk_norm", "It survives without Q/K norm.", only("no Q/K norm")),
    survives("no_gate_bias", "It survives without gate biases.", only("no gate bias")),
    survives(
        "kv_heads",
        "More KV heads do not remove it.",
        lambda entry: len(entry["differences"]) == 1 and "KV heads" in entry["differences"][0],
    ),
    survives(
        "deepseek",
        "The DeepSeek-style kernel has it.",
        lambda entry: "DeepSeek-style kernel" in entry["differences"],
    ),
    mean_hides_worst,
    not_only_boundary,
    in_sequence_agrees,
    seeds_move_profile,
    gates_specialise,
    loss_hides_it,
)


def evaluate_claims(summary: dict[str, Any]) -> list[Claim]:
    """Holds every claim against a summary.

    Args:
        summary: of phasejax.analysis.summarize; "runs" is enough.

    Returns:
        One claim for each of CLAIMS, in that order.
    """
    return [claim(summary) for claim in CLAIMS]


def caveats(summary: dict[str, Any]) -> list[str]:
    """What a reader must know before using the numbers, in sentences."""
    runs = summary["runs"]
    seeds: dict[tuple[str, str], int] = {}
    for entry in runs:
        key = (entry["variant"], entry["recipe"])
        seeds[key] = seeds.get(key, 0) + 1
    lines = [
        "The task is a synthetic record lookup at laptop scale, not the paper's task: models of"
        " under a million parameters here, 0.6 billion and 100 billion tokens there. Compare"
        " whether there is a period and where, not how large the gap is."
    ]
    if min(seeds.values()) < 2:
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
