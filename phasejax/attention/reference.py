# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The contract of compressed attention, written for clarity: one softmax, one dense mask.

Exact tokens, visible entries and the optional sink share one softmax in float32 (paper, section
"Attention"). Builds all Q x (T + E) scores; `blocked` computes the same without them.
"""

import jax
import jax.numpy as jnp

from phasejax.attention.masks import LocalSpan, entry_mask, local_mask
from phasejax.typing import Array, Bool, EntryKeys, Float, Int, LocalKeys, Queries


def softmax_with_sink(
    scores: Float[Array, "*B X"], mask: Bool[Array, "*#B X"], sink: Float[Array, "..."] | None
) -> Float[Array, "*B X"]:
    """Masked softmax over the last axis with an extra logit that takes weight and gives nothing.

    A row with nothing to read and no sink gives zeros.
    """
    scores = jnp.where(mask, scores, -jnp.inf)
    top = jnp.max(scores, axis=-1, keepdims=True, initial=jnp.finfo(scores.dtype).min)
    if sink is not None:
        top = jnp.maximum(top, sink[..., None])
    top = jax.lax.stop_gradient(top)
    weights = jnp.exp(scores - top)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    if sink is not None:
        total = total + jnp.exp(sink[..., None] - top)
    return weights / jnp.where(total > 0, total, 1)


def attend(
    query: Queries,
    query_position: Int[Array, "Q"],
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
    """Attends from each query to the exact tokens in its span and the entries that it may see.

    Args:
        query: finished queries (normalised, rotated).
        query_position: their positions.
        key: finished keys of all tokens 0 .. T - 1.
        value: their values.
        entry_key: finished keys of the entries.
        entry_value: their values.
        end: last token of each entry, inclusive.
        valid: whether each entry is real.
        span: which exact tokens are read.
        sink: one learned logit a query head, or None.

    Returns:
        The mixed values, [B, Q, N, H], in the dtype of `value`.
    """
    batch, queries, heads, head_dim = query.shape
    kv_heads = key.shape[2]
    keys = jnp.concatenate([key, entry_key], axis=1)
    values = jnp.concatenate([value, entry_value], axis=1)
    token = jnp.arange(key.shape[1])
    mask = jnp.concatenate(
        [
            local_mask(query_position, token, span, end, valid),
            entry_mask(query_position, end, valid),
        ],
        -1,
    )
    grouped = query.reshape(batch, queries, kv_heads, heads // kv_heads, head_dim)
    scores = jnp.einsum("bqkgh,bxkh->bkqgx", grouped, keys, preferred_element_type=jnp.float32)
    scores = scores * head_dim**-0.5
    if sink is not None:
        sink = sink.astype(jnp.float32).reshape(kv_heads, 1, heads // kv_heads)
    weights = softmax_with_sink(scores, mask[:, None, :], sink)
    mixed = jnp.einsum("bkqgx,bxkh->bqkgh", weights.astype(value.dtype), values)
    return mixed.reshape(query.shape)
