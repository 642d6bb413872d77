# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The gradient of index scores: those that were picked are computed again, in plain JAX.

A tile of queries at a time, so memory is the operands, their gradients and one tile of gathered
keys. The choice itself has no gradient.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels import tiles
from pallas_kernels.index_topk.reference import Picks, index_scores


def _picked_scores_vjp(
    query: Float[Array, "B Q N H"],
    weight: Float[Array, "B Q N"],
    key: Float[Array, "B E H"],
    index: Int[Array, "B Q P"],
    cotangent: Float[Array, "B Q P"],
    *,
    block: int,
) -> tuple[Float[Array, "B Q N H"], Float[Array, "B Q N"], Float[Array, "B E H"]]:
    """Gradient of the scores of the picked entries by query, weight and key."""
    wide = jnp.promote_types(key.dtype, jnp.float32)

    def step(d_key: Array, args: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array]]:
        q, w, at, ct = args
        rows = tiles.take_rows(key, at)
        _, vjp = jax.vjp(index_scores, q, w, rows)
        d_query, d_weight, d_rows = vjp(jnp.where(at >= 0, ct, 0))
        return tiles.add_rows(d_key, at, d_rows), (d_query, d_weight)

    split = functools.partial(tiles.split, block=block)
    args = split(query), split(weight), split(index, fill=-1), split(cotangent.astype(wide))
    d_key, (d_query, d_weight) = jax.lax.scan(step, jnp.zeros(key.shape, wide), args)
    length = query.shape[1]
    return tiles.join(d_query, length), tiles.join(d_weight, length), d_key.astype(key.dtype)


def with_gradient(select: Callable[..., Picks]) -> Callable[..., Picks]:
    """Gives a selection the gradient of the scores that it returns.

    Args:
        select: takes the seven arrays of `reference.index_topk`, then `picks` and `how`.

    Returns:
        A function of the same arrays, then `picks`, the queries in a tile of the gradient, and
        `how`; these three are static.
    """

    @functools.partial(jax.custom_vjp, nondiff_argnums=(7, 8, 9))
    def call(query, weight, key, position, end, segment, entry_segment, picks, block, how):
        return select(query, weight, key, position, end, segment, entry_segment, picks, how)

    def forward(query, weight, key, position, end, segment, entry_segment, picks, block, how):
        best = select(query, weight, key, position, end, segment, entry_segment, picks, how)
        return best, (query, weight, key, best.index)

    def backward(
        picks: int, block: int, how: Any, kept: tuple[Array, Array, Array, Array], cotangent: Picks
    ):
        grads = _picked_scores_vjp(*kept, cotangent.score, block=block)
        return *grads, None, None, None, None

    call.defvjp(forward, backward)
    return call
