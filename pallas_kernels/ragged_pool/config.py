# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Block sizes as a pure function of the shapes."""

import dataclasses


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
    channel = channels
    if gates > 1 and channels % 512 == 0:
        channel = 512
    most = max(2**15 // channel, 64) // 32 * 32
    mean = -(-tokens // max(entries, 1))
    token = min(max(-(-32 * mean // 32) * 32, 64), most)
    return Blocks(min(token, -(-tokens // 32) * 32), min(32, -(-entries // 8) * 8), channel)
