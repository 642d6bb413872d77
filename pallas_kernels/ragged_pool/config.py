# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Block sizes as a pure function of the shapes."""

import dataclasses

from pallas_kernels.block_sizes import block_sizes


@dataclasses.dataclass(frozen=True)
class Blocks:
    """How the pool is cut.

    Attributes:
        token: tokens in a tile.
        entry: entries in a tile.
        channel: channels in a tile.
    """

    token: int
    entry: int
    channel: int


def tpu_heuristic(tokens: int, entries: int, channels: int, gates: int) -> Blocks:
    """Tiles of about as many tokens as a tile of entries pools, within 128 KiB in float32.

    Scalar gates want all channels in one tile, since their gradient sums over channels.
    """
    sizes = block_sizes("ragged_pool", "tpu")
    channel = channels
    if gates > 1 and channels % sizes["channel"] == 0:
        channel = sizes["channel"]
    most = max(sizes["tile"] // channel, sizes["token"]) // 32 * 32
    mean = -(-tokens // max(entries, 1))
    token = min(max(-(-32 * mean // 32) * 32, sizes["token"]), most)
    return Blocks(min(token, -(-tokens // 32) * 32), min(32, -(-entries // 8) * 8), channel)
