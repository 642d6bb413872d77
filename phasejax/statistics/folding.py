# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Designs of the folded fits: phase columns, trend columns and orthonormal bases of them."""

import numpy as np

from phasejax.statistics.trials import Array


def demean(values: Array) -> Array:
    """Removes each document's mean.

    Args:
      values: [D, M] or [D, M, columns].

    Returns:
      The same shape; sums over the residues of a document are zero.
    """
    return values - values.mean(axis=1, keepdims=True)


def phase_columns(position: Array, period: int) -> Array:
    """Columns that span the functions of position % period.

    Args:
      position: [D, M] token positions.
      period: P; it need not divide M, since phases come from the position.

    Returns:
      [D, M, P] indicators.
    """
    return ((position % period)[..., None] == np.arange(period)).astype(np.float64)


def trend_columns(position: Array) -> Array:
    """Position and its square, scaled to order one.

    Args:
      position: [D, M] token positions.

    Returns:
      [D, M, 2].
    """
    scaled = (position - position.mean()) / max(float(position.std()), 1.0)
    return np.stack([scaled, scaled**2], axis=-1)


def orthonormal(columns: Array, against: Array) -> Array:
    """Orthonormal basis of document-demeaned columns after removing a nuisance basis.

    Demeaning and projecting the design as well as the scores is the Frisch-Waugh theorem: sums of
    squares of the scores on this basis are those of the joint regression.

    Args:
      columns: [D, M, columns].
      against: [D * M, K] orthonormal nuisance basis, K >= 0.

    Returns:
      [D * M, rank]; columns that the document means or the nuisance explain are dropped.
    """
    flat = demean(columns).reshape(-1, columns.shape[-1])
    scale = max(float(np.square(flat).sum(axis=0).max()), 1e-300)
    flat = flat - against @ (against.T @ flat)
    power, vectors = np.linalg.eigh(flat.T @ flat)
    keep = power > 1e-9 * scale
    basis = flat @ (vectors[:, keep] / np.sqrt(power[keep]))
    return basis - against @ (against.T @ basis)
