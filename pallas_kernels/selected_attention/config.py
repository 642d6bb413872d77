# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Block sizes as a pure function of the shapes."""

from pallas_kernels.tiles import power_of_two_at_most


def blocked_heuristic(query: tuple[int, ...], kv_heads: int, window: int, picks: int) -> int:
    """Queries in a tile, for plain JAX: about 2^22 gathered channels and 2^22 scores.

    Args:
        query: shape of the queries, [B, T, N, H].
        kv_heads: key-value heads.
        window: exact tokens that a query reads.
        picks: entries that a query reads.
    """
    batch, tokens, heads, head_dim = query
    dearest = batch * max(picks * kv_heads * head_dim, heads * (picks + window))
    return min(power_of_two_at_most(2**22 // max(dearest, 1)), 128, tokens)


def tpu_heuristic(tokens: int, picks: int) -> int:
    """Queries in a tile of the TPU kernel: their indices, twice, take 128 KiB of scalar memory."""
    size = max(2**14 // picks // 16 * 16, 16)
    return min(size, 64, -(-tokens // 16) * 16)
