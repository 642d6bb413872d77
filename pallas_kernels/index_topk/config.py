# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Block sizes as a pure function of the shapes."""

import dataclasses

from pallas_kernels.block_sizes import block_sizes
from pallas_kernels.tiles import power_of_two_at_most


@dataclasses.dataclass(frozen=True)
class Blocks:
    """How the index scores are cut.

    Attributes:
        query: queries in a tile.
        entry: entries in a tile.
        gradient: queries in a tile of the gradient, which gathers P rows for each.
    """

    query: int
    entry: int
    gradient: int


def blocked_heuristic(query: tuple[int, ...], entries: int, picks: int) -> Blocks:
    """For plain JAX: so many scores by head in a tile, and as many gathered channels.

    Args:
        query: shape of the queries, [B, Q, N, H].
        entries: entries to choose from.
        picks: how many are chosen.
    """
    batch, queries, heads, head_dim = query
    sizes = block_sizes("index_topk", "xla")
    # A tile of entries as large as the picks keeps merging no dearer than scoring.
    entry = min(max(power_of_two_at_most(2 * picks - 1), 128), max(entries, 1))
    rows = power_of_two_at_most(sizes["scores"] // (batch * heads * entry))
    gradient = power_of_two_at_most(sizes["scores"] // (batch * picks * max(heads, head_dim)))
    most = min(sizes["query"], queries)
    return Blocks(min(rows, most), entry, min(gradient, most))


# Queries fill the lanes of the TPU kernel.
TPU_LANES = 128


def tpu_sorted(picks: int) -> int:
    """Length of the sorted lists that the TPU kernel merges, and of its tiles of entries."""
    return max(1 << (picks - 1).bit_length(), 128)
