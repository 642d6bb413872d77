# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The crossed design: every document is seen once at every residue of the target position.

Axis letters of this package: D documents, M residues (column r holds the trials whose target
position is r modulo M), P phases of a period, B bootstrap draws or permutations.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ArrayLike = Any  # what numpy.asarray takes; its own alias refuses a plain int at run time

_CROSSED = (
    "every document needs exactly one trial at every residue: in nested designs, where a document "
    "misses residues, document effects pass for phase effects (57% false positives at 5%)"
)


def check_correct(correct: ArrayLike, *, unit: bool = False) -> Array:
    """Checks a table of scores.

    Args:
      correct: [D, M] score of document d at residue r: 0/1, boolean or continuous.
      unit: whether scores must lie in [0, 1], as those of an accuracy do.

    Returns:
      [D, M] float64 scores.

    Raises:
      ValueError: the table is not [D >= 2, M >= 2], not finite, or outside [0, 1].
    """
    try:
        scores = np.asarray(correct, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"correct is not a numeric [documents, residues] table: {error}. {_CROSSED}: "
            "drop incomplete documents."
        ) from error
    if scores.ndim != 2 or min(scores.shape) < 2:
        raise ValueError(
            f"correct has shape {scores.shape}, but it must be [documents >= 2, residues >= 2] "
            f"because {_CROSSED}: pass one row per document and one column per residue."
        )
    missing = ~np.isfinite(scores)
    if missing.any():
        raise ValueError(
            f"correct has {missing.sum()} missing (not finite) scores in "
            f"{missing.any(axis=1).sum()} of {len(scores)} documents, but {_CROSSED}: "
            "run the missing trials or drop those documents."
        )
    if unit and (scores.min() < 0 or scores.max() > 1):
        raise ValueError(
            f"correct has values in [{scores.min():g}, {scores.max():g}], but accuracies and "
            "their gaps need scores in [0, 1]: rescale the scores."
        )
    return scores


def check_trials(correct: ArrayLike, position: ArrayLike) -> tuple[Array, Array]:
    """Checks scores together with the absolute token positions of their targets.

    Args:
      correct: [D, M] scores.
      position: [D, M] integer token position of the target; position[d, r] % M == r.

    Returns:
      [D, M] float64 scores and [D, M] int64 positions.

    Raises:
      ValueError: a table is malformed, or a document does not cover the residues in order.
    """
    scores, where = check_correct(correct), np.asarray(position)
    if where.shape != scores.shape:
        raise ValueError(
            f"position has shape {where.shape}, but correct has shape {scores.shape}: pass the "
            "token position of the target of every trial."
        )
    if not np.issubdtype(where.dtype, np.integer) or where.min() < 0:
        raise ValueError(
            f"position has dtype {where.dtype} and minimum {where.min()}, but it must hold token "
            "positions, integers of at least 0: pass absolute 0-based positions."
        )
    residues = scores.shape[1]
    wrong = (where % residues != np.arange(residues)).any(axis=1)
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"position[{first}] % {residues} = {(where[first] % residues).tolist()}, but column r "
            f"must hold residue r modulo {residues} ({wrong.sum()} of {len(wrong)} documents do "
            f"not), because {_CROSSED}: sort each document's trials by residue and drop "
            "documents which miss one."
        )
    return scores, where.astype(np.int64)


def check_level(name: str, value: float) -> None:
    """Checks a confidence or significance level."""
    if not 0 < value < 1:
        raise ValueError(f"{name}={value}, but it must lie in (0, 1): 5% is 0.05.")
