# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Tests of a known period: folded fits within documents against a permutation null."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy import special

from phasejax.statistics import resampling
from phasejax.statistics.folding import demean, orthonormal, phase_columns, trend_columns
from phasejax.statistics.trials import Array, ArrayLike, check_trials
from phasejax.validation import check_count

_TIE = 1e-5  # relative; permuted statistics are summed in float32, and ties count against an effect


@dataclass(frozen=True)
class Comparison:
    """F tests of several designs against one nuisance model, observed and permuted.

    Attributes:
      df: [n] degrees of freedom of each design.
      df_residual: [n] of the residual of each design.
      observed: [n] F statistics.
      permuted: [B, n] F statistics under the permutations.
    """

    df: Array
    df_residual: Array
    observed: Array
    permuted: Array


def f_statistic(explained: Array, total: float | Array, df: Array, residual: Array) -> Array:
    """F of sums of squares; 0 where nothing varies or a design has no degree of freedom."""
    total = np.asarray(total, dtype=np.float64)
    rest = np.maximum(total - explained, 1e-12 * total)
    valid = (rest > 0) & (df > 0) & (residual > 0)
    ratio = explained * np.maximum(residual, 1)
    return np.where(valid, ratio / (np.maximum(df, 1) * np.where(rest > 0, rest, 1.0)), 0.0)


def log_tail(f: Array, df: Array, residual: Array) -> Array:
    """-log10 of the upper tail of the F distribution, also where the tail underflows.

    Below 1e-290 the incomplete beta function is replaced by the first term of its series in
    x = residual / (residual + df F), with the rest of the series bounded as a geometric one.

    Args:
      f: statistics.
      df: degrees of freedom of the numerator, broadcast against f.
      residual: degrees of freedom of the denominator.

    Returns:
      The shape of f, finite.
    """
    df, residual = np.maximum(df, 1), np.maximum(residual, 1)
    tail = special.fdtrc(df, residual, f)
    if tail.size == 0 or tail.min() > 1e-290:
        return 0.0 - np.log10(tail)
    f = np.where(tail > 1e-290, 1e3, f)  # any far tail: these keep the exact value
    a, b, x = residual / 2, df / 2, residual / (residual + df * f)
    series = np.maximum(1 - x * (a + b) / (a + 1), 1e-3)
    log = a * np.log(x) + b * np.log1p(-x) - np.log(a) - special.betaln(a, b) - np.log(series)
    return np.where(tail > 1e-290, 0.0 - np.log10(np.maximum(tail, 1e-290)), -log / np.log(10))


def residual_of(values: Array, basis: Array) -> Array:
    """Scores without their document means and their part on a basis.

    Args:
      values: [D, M].
      basis: [D * M, K] orthonormal and document-demeaned.

    Returns:
      [D, M]; exact zeros where nothing but rounding is left.
    """
    flat = demean(values).reshape(-1)
    rest = flat - basis @ (basis.T @ flat)
    noise = 1e-20 * np.square(values).sum()
    return rest.reshape(values.shape) if np.square(rest).sum() > noise else np.zeros_like(values)


def nuisance_basis(position: Array, remove_trend: bool) -> Array:
    """Basis of the trend columns, or an empty one: [D * M, 0..2]."""
    empty = np.zeros((position.size, 0))
    return orthonormal(trend_columns(position), empty) if remove_trend else empty


def compare(
    values: Array,
    nuisance: Array,
    designs: Iterable[Array],
    classes: Array,
    permutations: int,
    seed: int,
) -> Comparison:
    """F tests with a permutation null, for designs that share one nuisance model.

    What the nuisance leaves of the scores is rotated within documents (Freedman and Lane 1983).
    Documents rotate independently of each other, residues within a class by a common offset.

    Args:
      values: [D, M] scores.
      nuisance: [D * M, K] orthonormal basis of what is not tested.
      designs: [D, M, columns] of each tested design, made one at a time to save memory.
      classes: [D, M] residues that are exchangeable under the null; a constant for all.
      permutations: B.
      seed: of the permutations.

    Returns:
      The statistics, observed and permuted.
    """
    rest = residual_of(values, nuisance)
    total = float(np.square(rest).sum())
    states = resampling.rotation_states(classes)
    parts = [resampling.state_scores(rest, states, nuisance)]
    explained, df = [], []
    for columns in designs:
        basis = orthonormal(columns, nuisance)
        explained.append(float(np.square(basis.T @ rest.reshape(-1)).sum()))
        df.append(basis.shape[1])
        parts.append(resampling.state_scores(rest, states, basis))
    df = np.array(df)
    residual = rest.size - len(rest) - nuisance.shape[1] - df
    observed = f_statistic(np.array(explained), total, df, residual)
    owner = np.repeat(np.arange(len(parts)), [part.shape[1] for part in parts])
    indicator = (owner[:, None] == np.arange(len(parts))).astype(np.float32)
    permuted = []
    scores = np.concatenate(parts, axis=1)
    del parts
    for sums in resampling.permuted_sums(scores, len(rest), permutations, seed):
        squares = (np.square(sums) @ indicator).astype(np.float64)
        left = total - squares[:, :1]  # a rotation moves some of the residual onto the nuisance
        permuted.append(f_statistic(squares[:, 1:], left, df, residual))
    return Comparison(df, residual, observed, np.concatenate(permuted))


def permutation_p(observed: Array | float, permuted: Array) -> Array:
    """(1 + #{permuted >= observed}) / (1 + B), over the first axis of permuted."""
    bar = np.asarray(observed) - _TIE * np.abs(observed)
    return np.asarray((1 + (permuted >= bar).sum(axis=0)) / (1 + len(permuted)))


@dataclass(frozen=True)
class PeriodTest:
    """Test of one known period.

    Attributes:
      period: P.
      statistic: F of the folded fit within documents.
      df: degrees of freedom, P - 1, fewer if phases are not all visited.
      df_residual: degrees of freedom of the residual.
      p_value: permutation p-value, at least 1 / (1 + permutations).
      p_analytic: of the F distribution, for comparison.
      profile: [P] fitted phase effects around zero.
      explained: share of the within-document variance that the fit explains.
      permutations: B.
    """

    period: int
    statistic: float
    df: int
    df_residual: int
    p_value: float
    p_analytic: float
    profile: Array
    explained: float
    permutations: int


def known_period_test(
    correct: ArrayLike,
    position: ArrayLike,
    period: int,
    *,
    permutations: int = 9999,
    seed: int = 0,
    remove_trend: bool = True,
) -> PeriodTest:
    """Tests whether scores depend on position % period.

    The null shifts the residues of each document circularly, independently per document, so that
    document effects and the correlation of neighbours stay. It is valid if position has the same
    mean and variance at every residue, or if position and its square are removed, as by default.

    Args:
      correct: [D, M] scores of D documents at all M residues.
      position: [D, M] token positions of the targets; position[d, r] % M == r.
      period: 2..M; it need not divide M.
      permutations: B.
      seed: of the permutations.
      remove_trend: whether position and its square are regressed out.

    Returns:
      The test. Scores without variance within documents give p = 1.

    Raises:
      ValueError: a table is malformed or not crossed, or an argument is out of range.
    """
    scores, where = check_trials(correct, position)
    check_count("period", period, 2, scores.shape[1])
    check_count("permutations", permutations, 1)
    nuisance = nuisance_basis(where, remove_trend)
    columns = phase_columns(where, period)
    result = compare(scores, nuisance, [columns], np.zeros_like(where), permutations, seed)
    rest = residual_of(scores, nuisance).reshape(-1)
    flat = demean(columns).reshape(rest.size, -1)
    flat = flat - nuisance @ (nuisance.T @ flat)
    weights = np.linalg.lstsq(flat, rest, rcond=1e-6)[0]
    f, df, residual = result.observed, result.df, result.df_residual
    odds = float(f[0]) * int(df[0]) / max(int(residual[0]), 1)
    return PeriodTest(
        period=period,
        statistic=float(f[0]),
        df=int(df[0]),
        df_residual=int(residual[0]),
        p_value=float(permutation_p(f, result.permuted)[0]),
        p_analytic=float(special.fdtrc(max(df[0], 1), max(residual[0], 1), f[0])),
        profile=weights - weights.mean(),
        explained=odds / (1 + odds),
        permutations=permutations,
    )
