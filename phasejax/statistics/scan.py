# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Scan over all periods 2..M, and the decision which of them is the period."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from phasejax.statistics.folding import orthonormal, phase_columns
from phasejax.statistics.periodicity import compare, log_tail, nuisance_basis, permutation_p
from phasejax.statistics.repetition import repetition_p
from phasejax.statistics.trials import Array, ArrayLike, check_level, check_trials
from phasejax.validation import check_count


@dataclass(frozen=True)
class PeriodScan:
    """Scan over periods.

    Attributes:
      periods: [n] periods scanned.
      statistic: [n] -log10 of the analytic F tail of each folded fit. An F with 1 and one with 23
        degrees of freedom are not comparable; their tail probabilities are. The value is a
        common scale, not a p-value: the permutations calibrate its maximum.
      per_period_p: [n] permutation p-value of each period alone.
      adjusted_p: [n] permutation p-value of each period against the maximum over all.
      null_quantile: 1 - level quantile of the maximum under the permutations.
      p_value: of the maximum; the smallest adjusted_p.
      period: the period found; None if p_value exceeds level, or if no significant period comes
        again at every pass. It is significant itself, or improves a significant divisor
        significantly.
      level: significance level of the scan.
      permutations: B.
    """

    periods: tuple[int, ...]
    statistic: Array
    per_period_p: Array
    adjusted_p: Array
    null_quantile: float
    p_value: float
    period: int | None
    level: float
    permutations: int


def nested_test(
    scores: Array, position: Array, nuisance: Array, period: int, permutations: int, seed: int
) -> tuple[float, int]:
    """Tests whether any multiple of a period fits better than the period itself.

    The null keeps the profile of the period: each document's scores rotate within the classes
    position % period, which for divisors of M are the circular shifts by multiples of the period.
    A multiple must also improve the fit beyond the scatter of positions (repetition_p): the p-value
    of a multiple is the larger of the two.

    Args:
      scores: [D, M].
      position: [D, M].
      nuisance: [D * M, K] orthonormal trend basis.
      period: P.
      permutations: B.
      seed: of the permutations.

    Returns:
      Smallest p-value among the multiples up to M, and its multiple, of several the one that
      improves the fit most; (1, P) without multiples.
    """
    multiples = np.arange(2 * period, scores.shape[1] + 1, period)
    if not multiples.size:
        return 1.0, period
    base = orthonormal(phase_columns(position, period), nuisance)
    designs = (phase_columns(position, int(multiple)) for multiple in multiples)
    result = compare(
        scores,
        np.concatenate([nuisance, base], axis=1),
        designs,
        position % period,
        permutations,
        seed,
    )
    observed = log_tail(result.observed, result.df, result.df_residual)
    largest = log_tail(result.permuted, result.df, result.df_residual).max(axis=1)
    adjusted = permutation_p(observed, np.repeat(largest[:, None], len(multiples), axis=1))
    p_value = np.maximum(adjusted, repetition_p(scores, position, period, multiples))
    best = int(np.argmax(np.where(p_value == p_value.min(), observed, -np.inf)))
    return float(p_value[best]), int(multiples[best])


def find_period(
    scores: Array,
    position: Array,
    nuisance: Array,
    start: int,
    significant: Collection[int],
    level: float,
    permutations: int,
    seed: int,
) -> int:
    """Smallest significant period, related to the best fit, which no multiple improves.

    Only divisors and multiples compete. A near miss such as 7 for 8 is significant as well when
    documents span a few periods, and no multiple of 7 need improve it, but it fits worse than 8.
    The search therefore starts at the best fit, takes its smallest divisor that no multiple
    improves, and where there is none climbs to the multiple which improves it most. A divisor
    must be significant itself: where the effect is weak, a divisor that explains nothing is not
    improved significantly either.

    Args:
      scores: [D, M].
      position: [D, M].
      nuisance: [D * M, K] orthonormal trend basis.
      start: period of the best fit.
      significant: periods which may be taken as a divisor.
      level: of each nested test (the maximum over the multiples of one period).
      permutations: B of each nested test.
      seed: of the permutations.

    Returns:
      The period.
    """
    seen: dict[int, tuple[float, int]] = {}
    while True:
        divisors = {p for p in significant if start % p == 0} | {start}
        for period in sorted(divisors):
            if period not in seen:
                seen[period] = nested_test(
                    scores, position, nuisance, period, permutations, seed + period
                )
            if seen[period][0] > level:
                return period
        start = seen[start][1]


def scan_periods(
    correct: ArrayLike,
    position: ArrayLike,
    *,
    permutations: int = 9999,
    seed: int = 0,
    level: float = 0.05,
    nested_level: float = 0.01,
    nested_permutations: int = 1999,
) -> PeriodScan:
    """Scans the periods 2..M with a maximum statistic and names the period.

    Position and its square are regressed out.

    Args:
      correct: [D, M] scores of D documents at all M residues.
      position: [D, M] token positions of the targets; position[d, r] % M == r.
      permutations: B of the scan: circular shifts, independently per document.
      seed: of the permutations.
      level: significance level of the scan.
      nested_level: level at which a multiple of a period counts as an improvement. The period
        found is too large with about this probability.
      nested_permutations: B of each nested test.

    Returns:
      The scan. Scores without variance within documents give p = 1 and no period.

    Raises:
      ValueError: a table is malformed or not crossed, or an argument is out of range.
    """
    scores, where = check_trials(correct, position)
    periods = tuple(range(2, scores.shape[1] + 1))
    check_level("level", level)
    check_level("nested_level", nested_level)
    check_count("permutations", permutations, 1)
    check_count("nested_permutations", nested_permutations, int(np.ceil(1 / nested_level)) - 1)
    nuisance = nuisance_basis(where, True)
    result = compare(
        scores,
        nuisance,
        (phase_columns(where, period) for period in periods),
        np.zeros_like(where),
        permutations,
        seed,
    )
    observed = log_tail(result.observed, result.df, result.df_residual)
    permuted = log_tail(result.permuted, result.df, result.df_residual)
    largest = permuted.max(axis=1)
    adjusted = permutation_p(observed, np.repeat(largest[:, None], len(periods), axis=1))
    found = None
    alone = np.maximum(adjusted, repetition_p(scores, where, 1, periods)) <= level
    significant = [period for period, is_one in zip(periods, alone, strict=True) if is_one]
    if significant:
        found = find_period(
            scores,
            where,
            nuisance,
            periods[int(np.argmax(np.where(alone, observed, -np.inf)))],
            significant,
            nested_level,
            nested_permutations,
            seed + 1,
        )
    return PeriodScan(
        periods=periods,
        statistic=observed,
        per_period_p=permutation_p(observed, permuted),
        adjusted_p=adjusted,
        null_quantile=float(np.quantile(largest, 1 - level)),
        p_value=float(adjusted.min()),
        period=found,
        level=level,
        permutations=permutations,
    )
