# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Resampling that respects the design: whole documents, and rotations within a document."""

import math
from collections.abc import Iterator

import numpy as np
from scipy import sparse

from phasejax.statistics.trials import Array

_MAX_STATES = 60  # a multiple of 1..6, 10 and 12: other class sizes rotate almost uniformly
_CHUNK = 2**20  # documents times permutations handled at once
_BLOCK = 128  # documents summed at once, so that their scores stay in the cache


def bootstrap_means(values: Array, draws: int, seed: int) -> Array:
    """Column means of cluster bootstrap samples: documents are drawn with all their columns.

    Args:
      values: [D, C] scores.
      draws: B.
      seed: of the draws.

    Returns:
      [B, C].
    """
    documents = len(values)
    rng = np.random.default_rng(seed)
    step = max(1, _CHUNK // documents)
    means = [
        rng.multinomial(documents, np.full(documents, 1 / documents), size=min(step, draws - start))
        @ values
        for start in range(0, draws, step)
    ]
    return np.concatenate(means) / documents


def rotation_states(classes: Array) -> Array:
    """The permutations of a document's residues that rotate each class by a common offset.

    With one class these are the circular shifts of the M residues; with the classes r % P of a
    divisor P of M they are the shifts by multiples of P. Both keep neighbouring residues together.

    Args:
      classes: [D, M] class of every residue.

    Returns:
      [D, K, M] source column of every residue in each of K states; state 0 is the identity.
    """
    same = classes[:, :, None] == classes[:, None, :]
    size = same.sum(axis=2)
    rank = np.tril(same, -1).sum(axis=2)
    start = (classes[:, None, :] < classes[:, :, None]).sum(axis=2)
    order = np.argsort(classes, axis=1, kind="stable")
    states = min(math.lcm(*np.unique(size).tolist()), max(_MAX_STATES, int(size.max())))
    slots = [start + (rank + offset) % size for offset in range(states)]
    return np.stack([np.take_along_axis(order, slot, axis=1) for slot in slots], axis=1)


def state_scores(values: Array, states: Array, basis: Array) -> Array:
    """Each document's part of the scores on a basis, in each of its states.

    Args:
      values: [D, M].
      states: [D, K, M] of rotation_states.
      basis: [D * M, J].

    Returns:
      [D * K, J] float32.
    """
    documents, count, residues = states.shape
    rotated = np.take_along_axis(values[:, None, :], states, axis=2)
    scores = rotated @ basis.reshape(documents, residues, -1)
    return scores.astype(np.float32).reshape(documents * count, -1)


def permuted_sums(scores: Array, documents: int, draws: int, seed: int) -> Iterator[Array]:
    """Sums over documents, each in a state drawn independently of the others.

    Because a permutation picks one state per document, the sum is a product with a sparse
    selection matrix: M times less work than to permute and project the scores.

    Args:
      scores: [D * K, J] of state_scores.
      documents: D.
      draws: B.
      seed: of the draws.

    Yields:
      [chunk, J] sums; the chunks add up to B rows.
    """
    rng = np.random.default_rng(seed)
    count = len(scores) // documents
    step = max(1, _CHUNK // documents)
    for start in range(0, draws, step):
        rows = min(step, draws - start)
        states = rng.integers(0, count, size=(rows, documents), dtype=np.int32)
        total = np.zeros((rows, scores.shape[1]), np.float32)
        for first in range(0, documents, _BLOCK):
            block = states[:, first : first + _BLOCK]
            index = block + count * np.arange(block.shape[1], dtype=np.int32)
            ends = np.arange(0, index.size + 1, block.shape[1], dtype=np.int32)
            ones = np.ones(index.size, np.float32)
            shape = (rows, count * block.shape[1])
            pick = sparse.csr_matrix((ones, index.ravel(), ends), shape=shape)
            total += pick @ scores[count * first : count * first + shape[1]]
        yield total
