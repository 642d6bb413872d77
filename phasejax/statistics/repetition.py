# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a profile comes again at every pass of its period, or at a few positions only.

Permutations within documents draw other documents, not other positions. What a model does at some
positions alone, such as at the start of the context or just before the query, is therefore
significant for them at any period that happens to hold those positions. A period repeats: positions
of one phase agree with each other, far apart as they are. So positions are drawn here as well, as
items are in the analysis of experiments with subjects and items (Clark 1973).
"""

import numpy as np
from scipy import special

from phasejax.statistics.folding import demean, phase_columns, trend_columns
from phasejax.statistics.periodicity import f_statistic
from phasejax.statistics.trials import Array, ArrayLike


def repetition_p(scores: Array, position: Array, period: int, multiples: ArrayLike) -> Array:
    """p-values of the improvement of one period by multiples, against the scatter of positions.

    Means of the document-demeaned scores at every position, weighted by trials, are fitted by the
    phases of either period beside the trend; F compares what a multiple adds to what it leaves.

    Args:
      scores: [D, M].
      position: [D, M].
      period: P; 1 for the trend alone.
      multiples: [n] of P.

    Returns:
      [n] p-values of the F distribution. 0 where there are too few positions to tell: nothing is
      held against a period that was seen once.
    """
    places, where = np.unique(position, return_inverse=True)
    where = where.reshape(-1)
    weight = np.bincount(where)
    means = np.bincount(where, demean(scores).reshape(-1)) / weight
    root = np.sqrt(weight)

    def fit(period: int) -> tuple[float, int]:
        """Sum of squares that is left, and rank."""
        columns = (phase_columns(places[None], period)[0], trend_columns(places[None])[0])
        design = np.concatenate(columns, axis=1) * root[:, None]
        weights, _, rank, _ = np.linalg.lstsq(design, means * root, rcond=1e-9)
        return float(np.square(means * root - design @ weights).sum()), int(rank)

    total, fewer = fit(period)
    fits = [fit(int(multiple)) for multiple in multiples]
    left, rank = (np.array(column) for column in (zip(*fits, strict=True) if fits else ((), ())))
    residual = len(places) - rank
    f = f_statistic(total - left, total, rank - fewer, residual)
    p_value = special.fdtrc(np.maximum(rank - fewer, 1), np.maximum(residual, 1), f)
    if total <= 1e-20 * np.square(scores).sum():  # rounding: there is nothing to improve
        p_value = np.ones_like(p_value)
    return np.where(residual > 0, p_value, 0.0)
