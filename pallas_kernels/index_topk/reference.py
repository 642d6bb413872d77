# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The contract of the lightning indexer, written for clarity: all Q x E scores, a stable sort.

    I[p, e] = sum_n weight[p, n] * ReLU(query[p, n] . key[e])

An entry counts for the query at p iff its last token is at or before p and both belong to the same
document; the mask comes before the selection, so no entry of the future takes a place
(DeepSeek-V4, arXiv:2606.19348, and its inference code). Equal scores go to the lower index.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.masks import entry_mask
from pallas_kernels.products import product


class Picks(NamedTuple):
    """The P best entries of each query, best first.

    Attributes:
        index: their indices, or -1 where fewer than P entries are visible.
        score: their scores, at least float32, or -inf where index is -1.
    """

    index: Int[Array, "B Q P"]
    score: Float[Array, "B Q P"]


def index_scores(
    query: Float[Array, "*B N H"], weight: Float[Array, "*B N"], key: Float[Array, "*B E H"]
) -> Float[Array, "*B E"]:
    """Scores of the keys of each query, summed over heads, in float32 or wider."""
    wide = jnp.promote_types(query.dtype, jnp.float32)
    dots = product("...nh,...eh->...ne", query, key)
    return product("...n,...ne->...e", weight.astype(wide), jax.nn.relu(dots))


def index_topk(
    query: Float[Array, "B Q N H"],
    weight: Float[Array, "B Q N"],
    key: Float[Array, "B E H"],
    position: Int[Array, "B Q"],
    end: Int[Array, "B E"],
    segment: Int[Array, "B Q"],
    entry_segment: Int[Array, "B E"],
    *,
    picks: int,
) -> Picks:
    """See `api.index_topk`."""
    score = index_scores(query, weight, key[:, None])
    score = jnp.where(entry_mask(position, segment, end, entry_segment), score, -jnp.inf)
    missing = max(picks - key.shape[1], 0)
    score = jnp.pad(score, ((0, 0), (0, 0), (0, missing)), constant_values=-jnp.inf)
    index = jnp.argsort(score, axis=-1, stable=True, descending=True)[..., :picks]
    score = jnp.take_along_axis(score, index, axis=-1)
    return Picks(jnp.where(score > -jnp.inf, index, -1).astype(jnp.int32), score)
