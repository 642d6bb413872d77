# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The contract of compressed attention, written for clarity: one softmax, one dense mask.

Exact tokens, visible entries and the optional sink share one softmax in float32 (paper, section
"Attention"). Builds all Q x (T + E) scores.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from pallas_kernels.compressed_attention.masks import Reads
from pallas_kernels.masks import entry_mask, token_mask
from pallas_kernels.products import product
from pallas_kernels.tiles import Pair


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


def compressed_attention(
    query: Float[Array, "B Q N H"],
    near: Pair,
    entry: Pair,
    reads: Reads,
    sink: Float[Array, "N"] | None,
    *,
    span: int | None = None,
) -> Float[Array, "B Q N H"]:
    """See `api.compressed_attention`, which pairs keys and values.

    Args:
        query: finished queries.
        near: keys and values of the exact tokens; one array if they are the same.
        entry: keys and values of the entries; one array if they are the same.
        reads: which of them each query reads.
        sink: one logit a head, or None.
        span: most exact tokens that a query reads, if the queries are at 0 .. T - 1, or None. It
            says nothing that `reads` does not, but is known while tracing: here it has no use.
    """
    del span
    batch, queries, heads, head_dim = query.shape
    tokens, kv_heads = near[0].shape[1:3]
    wide = jnp.promote_types(query.dtype, jnp.float32)
    key = jnp.concatenate([near[0], entry[0]], axis=1)
    value = jnp.concatenate([near[-1], entry[-1]], axis=1)
    token = jnp.arange(tokens)[None]
    ask = reads.position, reads.segment
    mask = jnp.concatenate(
        [
            token_mask(reads.position, reads.since, reads.segment, token, reads.token_segment),
            entry_mask(*ask, reads.end, reads.entry_segment),
        ],
        axis=-1,
    )
    grouped = query.reshape(batch, queries, kv_heads, heads // kv_heads, head_dim)
    scores = product("bqkgh,bxkh->bkqgx", grouped, key) * head_dim**-0.5
    if sink is not None:
        sink = sink.astype(wide).reshape(kv_heads, 1, heads // kv_heads)
    weights = softmax_with_sink(scores, mask[:, None, :, None], sink)
    mixed = product("bkqgx,bxkh->bqkgh", weights.astype(value.dtype), value)
    return mixed.reshape(query.shape).astype(value.dtype)
