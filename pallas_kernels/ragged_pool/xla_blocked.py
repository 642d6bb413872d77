# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Pooling over chunks by segment reductions, in plain JAX: time and memory are T x D."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def chunk_bounds(chunk: Int[Array, "B T"], entries: int) -> Int[Array, "B E1"]:
    """Where each chunk starts, and where the last one ends; ids do not decrease along a row."""
    find = functools.partial(jnp.searchsorted, side="left")
    return jax.vmap(lambda c: find(c, jnp.arange(entries + 1)))(chunk).astype(jnp.int32)


def _pool_row(
    value: Float[Array, "T D"], score: Float[Array, "T D"], chunk: Int[Array, "T"], entries: int
) -> Float[Array, "E D"]:
    # One more segment takes what belongs to no chunk: ids below 0 would count from the end.
    outside = (chunk < 0) | (chunk >= entries)
    chunk, segments = jnp.where(outside, entries, chunk), entries + 1
    top = jax.lax.stop_gradient(jax.ops.segment_max(score, chunk, segments))
    weight = jnp.exp(score - top[chunk])
    total = jax.ops.segment_sum(weight, chunk, segments)
    mixed = jax.ops.segment_sum(weight * value, chunk, segments)
    return (mixed / jnp.where(total > 0, total, 1))[:entries]


def ragged_pool(
    value: Float[Array, "B T D"],
    score: Float[Array, "B T #D"],
    chunk: Int[Array, "B T"],
    *,
    entries: int,
) -> Float[Array, "B E D"]:
    """See `api.ragged_pool`."""
    wide = jnp.promote_types(value.dtype, jnp.float32)
    pool = jax.vmap(lambda v, s, c: _pool_row(v, s, c, entries))
    return pool(value.astype(wide), score.astype(wide), chunk).astype(value.dtype)
