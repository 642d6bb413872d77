# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The attention of DeepSeek-V4: one vector is key and value of all heads (arXiv:2606.19348).

One softmax spans the exact tokens nearby, the entries that the query reads, and a sink.
"""

import jax
import jax.numpy as jnp

from pallas_kernels.compressed_attention.reference import softmax_with_sink
from phasejax.models.deepseek_v4.blocks import by_rows, rows_within_budget
from phasejax.models.deepseek_v4.indexer import visible_entries
from phasejax.models.deepseek_v4.layers import product
from phasejax.typing import Array, Float, Int, Queries


def attend(
    query: Queries,
    position: Int[Array, "#B Q"],
    exact: Float[Array, "B X H"],
    entries: Float[Array, "B E H"] | None,
    picks: Int[Array, "B Q P"] | None,
    *,
    ratio: int,
    window: int,
    sink: Float[Array, "N"],
) -> Queries:
    """Attends from consecutive tokens to the exact tokens near them and to entries.

    Args:
        query: finished queries of consecutive tokens.
        position: their positions.
        exact: finished vectors of the window - 1 tokens before the first query (any values where
            there are none), then of the queries' own tokens: X = window - 1 + Q.
        entries: finished entries; entry e covers tokens up to ratio * (e + 1) - 1.
        picks: entries that each query reads, -1 for none; None means all that it may see.
        ratio: tokens an entry.
        window: exact tokens that a query reads, its own included.
        sink: one logit a head, unscaled, that takes weight and gives nothing.

    Returns:
        The mixed values, [B, Q, N, H], in the dtype of `query`.
    """
    batch, queries, heads, head_dim = query.shape
    before = window - 1
    far_tokens = 0 if entries is None else entries.shape[1] if picks is None else picks.shape[2]
    numbers = batch * max(heads, head_dim) * (window + far_tokens)
    rows = min(queries, rows_within_budget(numbers))
    blocks = -(-queries // rows)
    exact = jnp.pad(exact, ((0, 0), (0, blocks * rows - queries), (0, 0)))
    near_offset = jnp.arange(before + rows) - jnp.arange(rows)[:, None]

    def block(first: int | Array, query: Array, position: Array, *picked: Array) -> Array:
        near = jax.lax.dynamic_slice_in_dim(exact, first, before + rows, axis=1)
        token = position[..., None] - before + near_offset
        mask = (near_offset >= 0) & (near_offset < window) & (token >= 0)
        scores = product("bqnh,bxh->bqnx", query, near)
        mask = jnp.broadcast_to(mask, (batch, rows, before + rows))
        far, far_axes = None, "bqeh" if picked else "beh"
        if entries is not None:
            visible = visible_entries(position, ratio)[..., None]
            index = picked[0] if picked else jnp.arange(entries.shape[1])[None, None]
            far = entries
            if picked:
                place = jnp.maximum(index, 0)[..., None]
                far = jnp.take_along_axis(entries[:, None], place, axis=2)
            far_scores = product(f"bqnh,{far_axes}->bqne", query, far)
            far_mask = (index >= 0) & (index < visible)
            scores = jnp.concatenate([scores, far_scores], axis=-1)
            mask = jnp.concatenate([mask, far_mask], axis=-1)
        weights = softmax_with_sink(
            scores * head_dim**-0.5, mask[:, :, None], sink.astype(jnp.float32)[None, None]
        ).astype(query.dtype)
        mixed = product("bqnx,bxh->bqnh", weights[..., : before + rows], near)
        if far is not None:
            mixed += product(f"bqne,{far_axes}->bqnh", weights[..., before + rows :], far)
        return mixed.astype(query.dtype)

    arrays = (query, jnp.broadcast_to(position, (batch, queries)))
    return by_rows(block, rows, *(arrays if picks is None else (*arrays, picks)))
