# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Accuracy of each residue with Wilson intervals, and of the mean and worst residue."""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from phasejax.statistics.resampling import bootstrap_means
from phasejax.statistics.trials import Array, ArrayLike, check_correct, check_level
from phasejax.validation import check_count


def wilson(successes: ArrayLike, trials: ArrayLike, level: float = 0.95) -> tuple[Array, Array]:
    """Wilson score intervals of proportions (Wilson 1927, as in scipy.stats.binomtest).

    Args:
      successes: integers of any shape, 0 <= successes <= trials.
      trials: positive integers that broadcast against successes.
      level: confidence level of each interval.

    Returns:
      Lower and upper ends, each of the broadcast shape.

    Raises:
      ValueError: counts are not integers, or out of range.
    """
    check_level("level", level)
    hits, total = np.broadcast_arrays(np.asarray(successes), np.asarray(trials))
    for name, counts in (("successes", hits), ("trials", total)):
        if counts.dtype != bool and not np.issubdtype(counts.dtype, np.integer):
            raise ValueError(f"{name} has dtype {counts.dtype}, but it must hold counts: cast it.")
    if hits.size and (hits.min() < 0 or total.min() < 1 or (hits > total).any()):
        raise ValueError(
            f"successes={hits.tolist()} of trials={total.tolist()}, but 0 <= successes <= trials "
            "and trials >= 1 must hold: check that both count the same trials."
        )
    ends = [
        stats.binomtest(int(k), int(n)).proportion_ci(confidence_level=level, method="wilson")
        for k, n in zip(hits.ravel(), total.ravel(), strict=True)
    ]
    low = np.array([end.low for end in ends], dtype=np.float64).reshape(hits.shape)
    return low, np.array([end.high for end in ends], dtype=np.float64).reshape(hits.shape)


@dataclass(frozen=True)
class AccuracyProfile:
    """Accuracy as a function of the residue of the target position.

    Attributes:
      accuracy: [M] mean score of each residue.
      low: [M] lower Wilson end of each residue, one at a time.
      high: [M] upper Wilson end.
      mean: accuracy over all trials.
      mean_low: lower end, cluster bootstrap over documents.
      mean_high: upper end.
      worst: lowest accuracy of a residue. The minimum of noisy means is biased downwards.
      worst_low: lower end, the lowest Wilson end: the worst residue is a fixed one, so no
        correction for the choice among M is due at this end.
      worst_high: upper end, the lowest upper Wilson end at level 1 - (1 - level) / M, which covers
        the choice of the residue.
      documents: D.
      level: confidence level.
    """

    accuracy: Array
    low: Array
    high: Array
    mean: float
    mean_low: float
    mean_high: float
    worst: float
    worst_low: float
    worst_high: float
    documents: int
    level: float


def accuracy_profile(
    correct: ArrayLike, level: float = 0.95, draws: int = 2000, seed: int = 0
) -> AccuracyProfile:
    """Measures the accuracy of each residue.

    Fractional scores are rounded outwards for the Wilson ends, which is conservative: a score in
    [0, 1] varies no more than a coin with the same mean.

    Args:
      correct: [D, M] scores in [0, 1] of D documents at all M residues.
      level: confidence level of all intervals.
      draws: bootstrap samples of documents.
      seed: of the bootstrap.

    Returns:
      The profile. A mean of exactly 0 or 1, where the bootstrap has no width, gets the Wilson
      interval of D trials.

    Raises:
      ValueError: the table is malformed or not crossed, or an argument is out of range.
    """
    check_level("level", level)
    check_count("draws", draws, 2)
    scores = check_correct(correct, unit=True)
    documents, residues = scores.shape
    total = scores.sum(axis=0)
    down = np.floor(total + 1e-9).astype(np.int64)
    up = np.ceil(total - 1e-9).astype(np.int64)
    low, high = wilson(down, documents, level)[0], wilson(up, documents, level)[1]
    mean = float(scores.mean())
    tails = [(1 - level) / 2, (1 + level) / 2]
    means = bootstrap_means(scores.mean(axis=1, keepdims=True), draws, seed)
    mean_low, mean_high = np.quantile(means, tails)
    if mean in (0.0, 1.0):
        mean_low, mean_high = wilson(round(mean * documents), documents, level)
    simultaneous = wilson(up, documents, 1 - (1 - level) / residues)[1]
    return AccuracyProfile(
        accuracy=scores.mean(axis=0),
        low=low,
        high=high,
        mean=mean,
        mean_low=min(float(mean_low), mean),
        mean_high=max(float(mean_high), mean),
        worst=float(scores.mean(axis=0).min()),
        worst_low=float(low.min()),
        worst_high=float(simultaneous.min()),
        documents=documents,
        level=level,
    )
