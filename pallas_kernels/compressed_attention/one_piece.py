# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Compressed attention with few scores: exact tokens by blocks, entries beside them.

A block of queries as long as the local span reads two blocks of exact tokens, its own and the one
before, so the scores are T x (2 * span + E). The softmax parts share one maximum and one
normaliser and are never concatenated, nor are tokens and entries, which a stream keeps apart.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels import tiles
from pallas_kernels.compressed_attention.masks import Reads
from pallas_kernels.masks import entry_mask, token_mask
from pallas_kernels.products import product
from pallas_kernels.tiles import Pair


def _with_previous(blocks: Float[Array, "B C L *X"]) -> Float[Array, "B C L2 *X"]:
    """Each block of tokens after the block before it; zeros come before the first."""
    previous = jnp.pad(blocks[:, :-1], [(0, 0), (1, 0)] + [(0, 0)] * (blocks.ndim - 2))
    return jnp.concatenate([previous, blocks], axis=2)


def compressed_attention(
    query: Float[Array, "B Q N H"],
    near: Pair,
    entry: Pair,
    reads: Reads,
    sink: Float[Array, "N"] | None,
    *,
    span: int | None,
) -> Float[Array, "B Q N H"]:
    """See `api.compressed_attention`; without a span all queries are one block."""
    batch, tokens, heads, head_dim = query.shape
    kv_heads = near[0].shape[2]
    groups = heads // kv_heads
    wide = jnp.promote_types(query.dtype, jnp.float32)
    local = span is not None and 2 * span < tokens

    def blocks(x: Array, fill: int = 0) -> Array:
        if not local:
            return x[:, None]
        x = tiles.padded(x, span, fill)
        return x.reshape(x.shape[0], -1, span, *x.shape[2:])

    def in_reach(x: Array) -> Array:
        return _with_previous(blocks(x)) if local else blocks(x)

    q = blocks(query.astype(wide) * head_dim**-0.5)
    q = q.reshape(*q.shape[:3], kv_heads, groups, head_dim)
    k, v = (in_reach(near[i]) for i in (0, -1))
    position, since, segment = (
        blocks(reads.position, -1),
        blocks(reads.since),
        blocks(reads.segment),
    )
    token = jnp.arange(near[0].shape[1])[None, None]
    if local:
        token = jnp.arange(q.shape[1] * span).reshape(1, -1, span)
        token = jnp.concatenate([token - span, token], axis=-1)
    token_segment = in_reach(reads.token_segment)
    near_mask = token_mask(position, since, segment, token, token_segment)[:, :, None, :, None]
    far_mask = entry_mask(position, segment, reads.end[:, None], reads.entry_segment[:, None])
    far_mask = far_mask[:, :, None, :, None]

    close = product("bclkgh,bcxkh->bcklgx", q, k)
    far = product("bclkgh,bekh->bcklge", q, entry[0])
    close = jnp.where(near_mask, close, -jnp.inf)
    far = jnp.where(far_mask, far, -jnp.inf)
    lowest = jnp.finfo(wide).min
    top = jnp.maximum(jnp.max(close, -1, initial=lowest), jnp.max(far, -1, initial=lowest))
    if sink is not None:
        sink = sink.astype(wide).reshape(kv_heads, 1, groups)
        top = jnp.maximum(top, sink)
    top = jax.lax.stop_gradient(top)
    close, far = jnp.exp(close - top[..., None]), jnp.exp(far - top[..., None])
    total = close.sum(-1) + far.sum(-1)
    if sink is not None:
        total = total + jnp.exp(sink - top)
    mixed = product("bcklgx,bcxkh->bclkgh", close.astype(v.dtype), v)
    mixed += product("bcklge,bekh->bclkgh", far.astype(v.dtype), entry[-1])
    total = jnp.where(total > 0, total, 1).transpose(0, 1, 3, 2, 4)[..., None]
    mixed = (mixed / total).astype(v.dtype)
    return mixed.reshape(batch, -1, heads, head_dim)[:, :tokens]
