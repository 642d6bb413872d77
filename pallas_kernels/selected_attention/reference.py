# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The contract of attention over a local window and picked entries, written for clarity.

One softmax over the last `window` tokens of the query's document, the entries that were picked for
this query, and the sink, which takes weight and gives nothing (DeepSeek-V4, arXiv:2606.19348).
Gathers all B x Q x P entries.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels import tiles
from pallas_kernels.masks import token_mask
from pallas_kernels.products import product
from pallas_kernels.tiles import Pair


def local_mask(
    segment: Int[Array, "B Q"], token_segment: Int[Array, "B X"], window: int
) -> Bool[Array, "B Q X"]:
    """Whether each query reads each exact token; the last Q tokens are the queries' own."""
    token = jnp.arange(token_segment.shape[1])[None]
    position = token[:, token.shape[1] - segment.shape[1] :]
    return token_mask(position, position - window + 1, segment, token, token_segment)


def mix(
    query: Float[Array, "B Q N H"],
    near: Pair,
    near_mask: Bool[Array, "B Q X"],
    far: tuple[Float[Array, "B Q P K H"], ...],
    far_mask: Bool[Array, "B Q P"],
    sink: Float[Array, "N"] | None,
) -> Float[Array, "B Q N H"]:
    """Attends from every query to rows that it shares with others and to rows of its own.

    Args:
        query: finished queries.
        near: keys and values [B, X, K, H], shared by the queries; one array if they are the same.
        near_mask: which of them each query reads; one at least.
        far: keys and values [B, Q, P, K, H] of each query; one array if they are the same.
        far_mask: which of them are real.
        sink: one logit a head, or None.
    """
    batch, queries, heads, head_dim = query.shape
    kv_heads, count = near[0].shape[2], near[0].shape[1]
    wide = jnp.promote_types(query.dtype, jnp.float32)
    grouped = query.reshape(batch, queries, kv_heads, heads // kv_heads, head_dim)
    scores = jnp.concatenate(
        [
            product("bqkgh,bxkh->bqkgx", grouped, near[0]),
            product("bqkgh,bqpkh->bqkgp", grouped, far[0]),
        ],
        axis=-1,
    )
    mask = jnp.concatenate([near_mask, far_mask], axis=-1)[:, :, None, None]
    scores = jnp.where(mask, scores * head_dim**-0.5, -jnp.inf)
    if sink is not None:
        extra = sink.astype(wide).reshape(kv_heads, -1, 1)
        extra = jnp.broadcast_to(extra, (*scores.shape[:-1], 1))
        scores = jnp.concatenate([scores, extra], axis=-1)
    weights = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
    near_weights, far_weights = weights[..., :count], weights[..., count : mask.shape[-1]]
    mixed = product("bqkgx,bxkh->bqkgh", near_weights, near[-1])
    mixed += product("bqkgp,bqpkh->bqkgh", far_weights, far[-1])
    return mixed.reshape(query.shape).astype(query.dtype)


def selected_attention(
    query: Float[Array, "B Q N H"],
    near: Pair,
    entry: Pair,
    index: Int[Array, "B Q P"],
    segment: Int[Array, "B X"],
    sink: Float[Array, "N"] | None,
    *,
    window: int,
) -> Float[Array, "B Q N H"]:
    """See `api.selected_attention`, which pairs keys and values."""
    own = segment[:, segment.shape[1] - query.shape[1] :]
    near_mask = local_mask(own, segment, window)
    far = tuple(tiles.take_rows(rows, index) for rows in entry)
    return mix(query, near, near_mask, far, index >= 0, sink)
