# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Block sizes as a pure function of the shapes."""

import dataclasses

from pallas_kernels.block_sizes import block_sizes

# Entries that the TPU kernel works on at once: what fills the sublanes in bfloat16.
TPU_SLAB = 16


@dataclasses.dataclass(frozen=True)
class Blocks:
    """How the pool is cut.

    Attributes:
        entry: entries in a tile, whole slabs.
        unroll: rows of a chunk that one turn of a loop handles.
    """

    entry: int
    unroll: int


def tpu_heuristic(entries: int, stride: int, channels: int) -> Blocks:
    """Tiles of about as many channels of payload.

    Args:
        entries: entries of the whole call.
        stride: S, rows of a chunk.
        channels: L D, channels of a row.
    """
    slabs = max(block_sizes("chunk_pool", "tpu")["tile"] // (stride * channels) // TPU_SLAB, 1)
    unroll = next(n for n in (4, 2, 1) if stride % n == 0)
    return Blocks(min(slabs, -(-entries // TPU_SLAB)) * TPU_SLAB, unroll)
