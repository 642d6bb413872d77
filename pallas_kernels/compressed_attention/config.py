# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Block sizes as a pure function of the shapes."""

import dataclasses

from pallas_kernels.block_sizes import block_sizes
from pallas_kernels.tiles import power_of_two_at_most


@dataclasses.dataclass(frozen=True)
class Blocks:
    """How the scores are cut.

    Attributes:
        query: queries in a tile.
        token: exact tokens in a tile.
        entry: entries in a tile.
    """

    query: int
    token: int
    entry: int


# Scores that are small enough to be made in one piece.
ONE_PIECE = 2**20


def blocked_heuristic(
    query: tuple[int, ...], tokens: int, entries: int, span: int | None
) -> Blocks:
    """For plain JAX: tiles of scores that fit a core's cache, all heads of all rows in one tile.

    Args:
        query: shape of the queries, [B, Q, N, H].
        tokens: exact tokens.
        entries: entries.
        span: most exact tokens that a query reads, where that is known.
    """
    batch, queries, heads, _ = query
    scores = block_sizes("compressed_attention", "xla")["scores"]
    rows = power_of_two_at_most(scores // (batch * heads))  # of a tile, times its columns
    length = min(max(power_of_two_at_most(int(rows**0.5)), 16), 64, queries)
    columns = max(rows // length, 64)
    # One tile holds all exact tokens of a tile of queries wherever their span is short.
    near = columns if span is None else min(-(-(span - 1 + length) // 16) * 16, columns)
    return Blocks(length, min(near, tokens), min(columns, max(entries, 1)))


@dataclasses.dataclass(frozen=True)
class TpuBlocks:
    """How the TPU kernels cut the scores.

    Attributes:
        query: queries in a tile.
        heads: heads in a tile, which share keys and values.
        token: exact tokens in a tile.
        entry: entries in a tile.
        fetch: tiles that are fetched at once, where more than a few are read.
    """

    query: int
    heads: int
    token: int
    entry: int
    fetch: int


def tpu_heuristic(
    query: tuple[int, ...], kv_heads: int, tokens: int, entries: int, span: int | None
) -> TpuBlocks:
    """So many heads and queries in lanes, rows in sublanes, and channels of keys in a block.

    Args:
        query: shape of the queries, [B, Q, N, H].
        kv_heads: key-value heads.
        tokens: exact tokens.
        entries: entries.
        span: most exact tokens that a query reads, where that is known.
    """
    _, queries, heads, head_dim = query
    groups, sizes = heads // kv_heads, block_sizes("compressed_attention", "tpu")
    together = max(n for n in range(1, 17) if groups % n == 0)

    def whole(rows: int, most: int) -> int:
        return min(most, -(-max(rows, 1) // 16) * 16)

    entry = whole(entries, sizes["rows"])
    return TpuBlocks(
        query=whole(queries, power_of_two_at_most(sizes["lanes"] // together)),
        heads=together,
        token=whole(tokens, sizes["rows" if span is None else "near_rows"]),
        entry=entry,
        fetch=max(sizes["fetched"] // (entry * head_dim), 1),
    )
