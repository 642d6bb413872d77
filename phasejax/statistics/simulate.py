# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Crossed trials with a planted phase profile: for planning samples and checking the tests."""

from typing import Literal

import numpy as np
from scipy import stats

from phasejax.statistics.trials import Array, ArrayLike
from phasejax.validation import check_count

DEAD_PHASE = (0.64, 0.73, 0.72, 0.85, 0.76, 1.0, 1.0, 0.12)  # one of eight phases fails


def draw_positions(
    documents: int,
    residues: int,
    seed: int,
    *,
    start: ArrayLike = 480,
    design: Literal["matched", "drift"] = "matched",
) -> Array:
    """Draws target positions start + s + M k with s in 0..M-1 and k in {-1, 0, 1}.

    Args:
      documents: D.
      residues: M.
      seed: of the draws.
      start: integers of at least M: one for all documents, or [D].
      design: "matched" draws k such that position has mean start + (M - 1) / 2 and variance
        M^2 / 2 at every residue; "drift" draws k uniformly, so that residues differ in depth.

    Returns:
      [D, M] integer positions, position[d, r] % M == r.
    """
    first = np.broadcast_to(np.asarray(start), (documents,))[:, None]
    if not np.issubdtype(first.dtype, np.integer) or first.min() < residues:
        raise ValueError(
            f"start={start}, but it must hold integers of at least residues={residues}, so that no "
            "position is negative: raise start."
        )
    rng = np.random.default_rng(seed)
    step = (np.arange(residues) - first) % residues
    centre = (step - (residues - 1) / 2) / residues
    before, after = (0.5 + centre**2 + centre) / 2, (0.5 + centre**2 - centre) / 2
    if design == "drift":
        before, after = np.full(step.shape, 1 / 3), np.full(step.shape, 1 / 3)
    u = rng.random((documents, residues))
    shift = (u > 1 - after).astype(np.int64) - (u < before)
    return first + step + residues * shift


def draw_correct(
    position: Array,
    profile: ArrayLike,
    seed: int,
    *,
    document_variance: float = 0.3,
    trend: float = 0.0,
) -> Array:
    """Draws right and wrong answers whose accuracy follows a phase profile.

    A latent normal variable has a part shared by the trials of a document, so that accuracies per
    phase are exactly those of the profile whatever the document effect.

    Args:
      position: [D, M] target positions.
      profile: [P] accuracy at each phase position % P.
      seed: of the draws.
      document_variance: share of the latent variance that trials of a document have in common.
      trend: change of accuracy per token, around the mean position.

    Returns:
      [D, M] boolean answers.
    """
    accuracy = np.asarray(profile, dtype=np.float64)
    check_count("profile size", accuracy.size, 1)
    rng = np.random.default_rng(seed)
    target = accuracy[position % accuracy.size] + trend * (position - position.mean())
    latent = np.sqrt(document_variance) * rng.standard_normal((len(position), 1))
    latent = latent + np.sqrt(1 - document_variance) * rng.standard_normal(position.shape)
    return latent < stats.norm.ppf(np.clip(target, 0.0, 1.0))
