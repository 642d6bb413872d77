# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The contract of pooling over chunks of any length, written for clarity: a dense E x T mask.

    pooled[e] = sum_{t in chunk e} softmax_{t in chunk e}(score[t]) * value[t]      by channel

Chunks of dynamic length are packed to static shapes: token t belongs to chunk `chunk[t]`. Ids
outside 0 .. E - 1 are pooled nowhere, which leaves the policy for too many chunks to the caller.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def ragged_pool(
    value: Float[Array, "B T D"],
    score: Float[Array, "B T #D"],
    chunk: Int[Array, "B T"],
    *,
    entries: int,
) -> Float[Array, "B E D"]:
    """See `api.ragged_pool`."""
    wide = jnp.promote_types(value.dtype, jnp.float32)
    member = (chunk[:, None, :] == jnp.arange(entries)[:, None])[..., None]
    scores = jnp.where(member, score.astype(wide)[:, None], -jnp.inf)
    # A chunk without tokens: any finite row keeps the softmax and its gradient finite.
    scores = jnp.where(member.any(2, keepdims=True), scores, 0)
    weights = jnp.where(member, jax.nn.softmax(scores, axis=2), 0)
    pooled = jnp.sum(weights * value.astype(wide)[:, None], axis=2)
    return pooled.astype(value.dtype)
