# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The paper's claims, each held against a summary: shown, shown in part, not shown, not tested.

The rules are fixed here, before any run, and use only numbers of the summary. A run that did not
learn the task, or answers everything, can show nothing and is named as such.
"""

from collections.abc import Callable, Sequence
from typing import Any

from phasejax.analysis.claims.averages import (
    loss_hides_it,
    mean_hides_worst,
    seeds_move_profile,
)
from phasejax.analysis.claims.causes import gates_specialise, not_only_boundary
from phasejax.analysis.claims.claim import NOT_SHOWN, NOT_TESTED, PARTLY, SHOWN, Claim
from phasejax.analysis.claims.periods import (
    control_is_flat,
    in_sequence_agrees,
    only,
    period_is_stride,
    survives,
)

__all__ = [
    "CLAIMS",
    "NOT_SHOWN",
    "NOT_TESTED",
    "PARTLY",
    "SHOWN",
    "Claim",
    "evaluate_claims",
]

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
