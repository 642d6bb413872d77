# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The contract of pooling over chunks of one length, written for clarity: every window gathered.

    pooled[e] = sum_i softmax_i(score[e, i] + bias[i]) * payload[e, i]

A chunk is S consecutive rows. With L lanes an entry pools the lane l of the chunk L - 1 - l before
its own, all in one softmax: W = L * S rows (DeepSeek-V4, arXiv:2606.19348, where L is 1 or 2).
Chunks before the first do not exist and weigh nothing.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def by_entry(x: Float[Array, "B E S L D"], fill: float | Array = 0) -> Float[Array, "B E W D"]:
    """What each entry pools, oldest first; `fill` stands for chunks before the first."""
    lanes = x.shape[3]
    parts = []
    for lane in range(lanes):
        missing = min(lanes - 1 - lane, x.shape[1])
        before = jnp.full_like(x[:, :missing, :, lane], fill)
        parts.append(jnp.concatenate([before, x[:, : x.shape[1] - missing, :, lane]], axis=1))
    return jnp.concatenate(parts, axis=2)


def chunk_pool(
    payload: Float[Array, "B E S L D"],
    score: Float[Array, "B E S L G"],
    bias: Float[Array, "S L G"],
) -> Float[Array, "B E D"]:
    """See `api.chunk_pool`."""
    wide = jnp.promote_types(payload.dtype, jnp.float32)
    score = score.astype(wide) + bias.astype(wide)[None, None]
    weight = jax.nn.softmax(by_entry(score, -jnp.inf), axis=2)
    weight = jnp.repeat(weight, payload.shape[-1] // weight.shape[-1], axis=-1)
    return jnp.sum(weight * by_entry(payload.astype(wide)), axis=2).astype(payload.dtype)
