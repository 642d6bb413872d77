# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Compressed attention without a T x T array: exact tokens by blocks, entries beside them.

A block of queries as long as the local span reads two blocks of exact tokens, its own and the one
before, so the scores are T x (2 * span + E). Same contract as `reference.attend` with queries at
every position; the softmax parts share one maximum and one normaliser and are never concatenated.
"""

import jax
import jax.numpy as jnp

from phasejax.attention.masks import LocalSpan, entry_mask, local_mask
from phasejax.typing import Array, Bool, EntryKeys, Float, Int, LocalKeys, Queries


def _with_previous(blocks: Float[Array, "B C L K H"]) -> Float[Array, "B C L2 K H"]:
    """Each block of tokens after the block before it; zeros come before the first."""
    previous = jnp.pad(blocks[:, :-1], ((0, 0), (1, 0), (0, 0), (0, 0), (0, 0)))
    return jnp.concatenate([previous, blocks], axis=2)


def attend(
    query: Queries,
    key: LocalKeys,
    value: LocalKeys,
    entry_key: EntryKeys,
    entry_value: EntryKeys,
    end: Int[Array, "E"],
    valid: Bool[Array, "E"],
    *,
    span: LocalSpan,
    sink: Float[Array, "N"] | None = None,
) -> Queries:
    """See `reference.attend`; queries are at positions 0 .. T - 1.

    Raises:
        NotImplementedError: if the span is the whole past, which has no blocks.
    """
    if span.size is None:
        raise NotImplementedError("span.size=None reads the whole past: use the dense reference.")
    batch, tokens, heads, head_dim = query.shape
    kv_heads, size = key.shape[2], span.size
    groups = heads // kv_heads
    count = -(-tokens // size)
    padding = ((0, 0), (0, count * size - tokens), (0, 0), (0, 0))

    def blocks(x: Array) -> Array:
        return jnp.pad(x, padding).reshape(batch, count, size, *x.shape[2:])

    scaled = query * jnp.asarray(head_dim**-0.5, query.dtype)
    q = blocks(scaled).reshape(batch, count, size, kv_heads, groups, head_dim)
    k, v = _with_previous(blocks(key)), _with_previous(blocks(value))
    position = jnp.arange(count * size).reshape(count, size)
    token = jnp.concatenate([position - size, position], axis=1)
    near_mask = local_mask(position, token, span, end, valid)[:, None, :, None]
    far_mask = entry_mask(position, end, valid)[:, None, :, None]

    near = jnp.einsum("bclkgh,bcxkh->bcklgx", q, k, preferred_element_type=jnp.float32)
    far = jnp.einsum("bclkgh,bekh->bcklge", q, entry_key, preferred_element_type=jnp.float32)
    near = jnp.where(near_mask, near, -jnp.inf)
    far = jnp.where(far_mask, far, -jnp.inf)
    lowest = jnp.finfo(jnp.float32).min
    top = jnp.maximum(jnp.max(near, -1, initial=lowest), jnp.max(far, -1, initial=lowest))
    if sink is not None:
        sink = sink.astype(jnp.float32).reshape(kv_heads, 1, groups)
        top = jnp.maximum(top, sink)
    top = jax.lax.stop_gradient(top)
    near, far = jnp.exp(near - top[..., None]), jnp.exp(far - top[..., None])
    total = near.sum(-1) + far.sum(-1)
    if sink is not None:
        total = total + jnp.exp(sink - top)
    mixed = jnp.einsum("bcklgx,bcxkh->bclkgh", near.astype(value.dtype), v) + jnp.einsum(
        "bcklge,bekh->bclkgh", far.astype(value.dtype), entry_value
    )
    total = jnp.where(total > 0, total, 1).transpose(0, 1, 3, 2, 4)[..., None]
    mixed = (mixed / total).astype(value.dtype)
    return mixed.reshape(batch, count * size, heads, head_dim)[:, :tokens]
