# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The gap between the best and the worst residue or phase, corrected for its upward bias.

The largest minus the smallest of noisy means exceeds the largest minus the smallest of the means,
and a percentile bootstrap adds noise to noise: without any effect its lower end is above zero in
every simulated sample short of a perfect score. What is done instead:

* estimate: cross-fitting. Nine tenths of the documents choose the best and the worst column, the
  other tenth measures their difference. Before it is clipped to the interval its expectation is
  zero without an effect, and at most the true gap with one.
* upper end: the true best and worst columns are two fixed ones, so the largest upper end over
  pairs of columns, each at the level of a single pair, covers them. Pairs get Newcombe's (1998,
  method 10) interval of paired proportions, built from Wilson intervals, so that it does not
  collapse at an accuracy of 1, and with the design effect of the documents.
* lower end: the raw gap exceeds the true one by at most the range of the errors of all columns,
  whose quantile the cluster bootstrap gives.

With an effect both ends are conservative, the lower one by far. Without one the lower end misses
at about its nominal rate and the upper end hardly ever: over many residues it is wide, so take
the folded gap to claim that there is no effect. The measured rates, those of the percentile
bootstrap among them, are in docs/results/statistics.json.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from phasejax.statistics import resampling
from phasejax.statistics.trials import Array, ArrayLike, check_correct, check_level
from phasejax.validation import check_count

_FOLDS = 10
_REPEATS = 10


@dataclass(frozen=True)
class Gap:
    """Best minus worst accuracy over residues or phases, as a fraction.

    Attributes:
      raw: largest minus smallest mean score: biased upwards.
      corrected: cross-fitted estimate, biased downwards if at all; within [low, high].
      low: lower end of the interval of the true gap.
      high: upper end. "No effect" is a statement about this number.
      null_expectation: mean raw gap after circular shifts of every document, which have no phase
        effect: what noise alone would show. It overstates that where scores depend on the phase,
        because the shifts then mix phases of different accuracy.
      best: column of the largest mean.
      worst: column of the smallest mean.
      columns: residues, or phases if folded, over which the gap is taken.
      documents: D.
      level: confidence level.
    """

    raw: float
    corrected: float
    low: float
    high: float
    null_expectation: float
    best: int
    worst: int
    columns: tuple[int, ...]
    documents: int
    level: float


def fold(correct: Array, period: int) -> Array:
    """Averages the residues of a phase: [D, M] to [D, P], for a divisor P of M."""
    residues = correct.shape[1]
    check_count("period", period, 2, residues)
    if residues % period:
        raise ValueError(
            f"period={period} does not divide the {residues} residues, so that a phase has no "
            f"fixed set of residues: choose a divisor of {residues}, or test the period instead."
        )
    return correct.reshape(len(correct), -1, period).mean(axis=1)


def cross_fitted(values: Array, seed: int) -> float:
    """Difference of the best and the worst column, measured on documents that did not choose them.

    Args:
      values: [D, C] scores.
      seed: of the assignment of documents to folds.

    Returns:
      The mean over folds, weighted by documents, and over repeated assignments. Ties for the
      best or worst column are averaged.
    """
    documents = len(values)
    folds = min(_FOLDS, documents)
    rng = np.random.default_rng(seed)
    total = values.sum(axis=0)
    differences = []
    for _ in range(_REPEATS):
        assigned = rng.permutation(documents) % folds
        held = np.stack([values[assigned == f].sum(axis=0) for f in range(folds)])
        chosen_by = total - held
        best = chosen_by >= chosen_by.max(axis=1, keepdims=True) - 1e-9
        worst = chosen_by <= chosen_by.min(axis=1, keepdims=True) + 1e-9
        top = (held * best).sum(axis=1) / best.sum(axis=1)
        bottom = (held * worst).sum(axis=1) / worst.sum(axis=1)
        differences.append((top - bottom).sum() / documents)
    return float(np.mean(differences))


def pairwise_upper(values: Array, repeats: int, level: float) -> float:
    """Largest upper end of the differences of two columns.

    Args:
      values: [D, C] scores in [0, 1], each the mean of `repeats` trials of a document.
      repeats: trials behind a score, which bound the effective sample size by D * repeats.
      level: two-sided level of a pair.

    Returns:
      The upper end, at most 1.
    """
    documents = len(values)
    z = float(stats.norm.ppf((1 + level) / 2))
    mean, deviation = values.mean(axis=0), values - values.mean(axis=0)
    covariance = deviation.T @ deviation / documents
    spread = np.sqrt(np.diag(covariance))
    norm = np.outer(spread, spread)
    correlation = np.where(norm > 0, covariance / np.where(norm > 0, norm, 1.0), 0.0)
    binomial = mean * (1 - mean)
    effect = np.where(spread > 0, binomial / np.where(spread > 0, spread**2, 1.0), 1.0)
    trials = documents * np.clip(effect, 1, repeats)
    half = z * np.sqrt(binomial / trials + z**2 / (4 * trials**2))
    centre, scale = mean + z**2 / (2 * trials), 1 + z**2 / trials
    up, down = (centre + half) / scale - mean, mean - (centre - half) / scale
    squared = up[:, None] ** 2 + down**2 - 2 * correlation * up[:, None] * down
    ends = mean[:, None] - mean + np.sqrt(np.maximum(squared, 0.0))
    np.fill_diagonal(ends, 0.0)
    return float(min(ends.max(), 1.0))


def null_gap(values: Array, draws: int, seed: int) -> float:
    """Mean raw gap of [D, C] scores under independent circular shifts of every document."""
    documents, columns = values.shape
    states = resampling.rotation_states(np.zeros(values.shape, dtype=np.int64))
    rotated = np.take_along_axis(values[:, None, :], states, axis=2)
    rotated = rotated.astype(np.float32).reshape(-1, columns)
    sums = resampling.permuted_sums(rotated, documents, draws, seed)
    return float(np.concatenate([np.ptp(part, axis=1) for part in sums]).mean() / documents)


def estimate_gap(
    correct: ArrayLike,
    *,
    period: int | None = None,
    phases: Sequence[int] | None = None,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> Gap:
    """Estimates the gap over residues, folded phases, or some of them.

    Args:
      correct: [D, M] scores in [0, 1] of D documents at all M residues.
      period: divisor of M to fold to first; None for the raw residues.
      phases: phases of the period (or residues) to take the gap over, such as those whose keys do
        not straddle a boundary; all by default.
      level: confidence level of [low, high]; each end is one-sided at (1 + level) / 2.
      draws: bootstrap samples of documents, and permutations of the null expectation.
      seed: of all resampling.

    Returns:
      The gap with its interval.

    Raises:
      ValueError: the table is malformed or not crossed, or an argument is out of range.
    """
    check_level("level", level)
    check_count("draws", draws, 2)
    scores = check_correct(correct, unit=True)
    values = scores if period is None else fold(scores, period)
    columns = tuple(range(values.shape[1]) if phases is None else map(int, phases))
    inside = all(0 <= column < values.shape[1] for column in columns)
    if len(columns) < 2 or len(set(columns)) < len(columns) or not inside:
        raise ValueError(
            f"phases={columns}, but a gap needs at least two different ones within "
            f"0..{values.shape[1] - 1}: choose phases of the period, or residues without one."
        )
    repeats = scores.shape[1] // values.shape[1]
    values = np.ascontiguousarray(values[:, columns])
    mean = values.mean(axis=0)
    raw = float(np.ptp(mean))
    errors = resampling.bootstrap_means(values, draws, seed) - mean
    low = raw - float(np.quantile(np.ptp(errors, axis=1), (1 + level) / 2))
    high = max(raw, pairwise_upper(values, repeats, level))
    low = min(max(low, 0.0), raw)
    return Gap(
        raw=raw,
        corrected=min(max(cross_fitted(values, seed + 1), low), high),
        low=low,
        high=high,
        null_expectation=null_gap(values, draws, seed + 2),
        best=columns[int(np.argmax(mean))],
        worst=columns[int(np.argmin(mean))],
        columns=columns,
        documents=len(values),
        level=level,
    )
