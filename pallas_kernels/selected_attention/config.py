# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Block sizes as a pure function of the shapes."""

from pallas_kernels.block_sizes import block_sizes
from pallas_kernels.tiles import power_of_two_at_most


def blocked_heuristic(query: tuple[int, ...], kv_heads: int, window: int, picks: int) -> int:
    """Queries in a tile, for plain JAX: so many gathered channels and scores.

    Args:
        query: shape of the queries, [B, T, N, H].
        kv_heads: key-value heads.
        window: exact tokens that a query reads.
        picks: entries that a query reads.
    """
    batch, tokens, heads, head_dim = query
    dearest = batch * max(picks * kv_heads * head_dim, heads * (picks + window))
    sizes = block_sizes("selected_attention", "xla")
    return min(power_of_two_at_most(sizes["gathered"] // max(dearest, 1)), sizes["query"], tokens)


def tpu_heuristic(tokens: int, picks: int) -> int:
    """Queries in a tile of the TPU kernel: their indices, twice, take 128 KiB of scalar memory."""
    sizes = block_sizes("selected_attention", "tpu")
    size = max(sizes["picks"] // picks // 16 * 16, 16)
    return min(size, sizes["query"], -(-tokens // 16) * 16)
