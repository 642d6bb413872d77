# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The most recent rows of a stream, newest last, in an array whose shape never changes.

Rows are never addressed by position modulo a size, so no row can stand for another one. Rows before
a stream's first token are whatever they were: readers mask them by their position, below 0.
"""

import jax.numpy as jnp

from phasejax.typing import Array, Float, Int


def recall(recent: Float[Array, "B L *F"], new: Float[Array, "B T *F"], before: int) -> Array:
    """The last `before` rows, then the new ones."""
    return jnp.concatenate([recent[:, recent.shape[1] - before :], new.astype(recent.dtype)], 1)


def extend(
    recent: Float[Array, "B L *F"], new: Float[Array, "B T *F"], count: Int[Array, "B"]
) -> Float[Array, "B L *F"]:
    """Takes the first count[b] new rows of every stream b; the oldest rows leave."""
    rows = jnp.concatenate([recent, new.astype(recent.dtype)], axis=1)
    return _pick(rows, count[:, None] + jnp.arange(recent.shape[1])[None])


def rewind(recent: Float[Array, "B L *F"], count: Int[Array, "B"]) -> Float[Array, "B L *F"]:
    """Forgets the last count[b] rows; as many of the oldest are unknown from then on."""
    return _pick(recent, jnp.maximum(jnp.arange(recent.shape[1])[None] - count[:, None], 0))


def _pick(rows: Float[Array, "B L *F"], index: Int[Array, "B L2"]) -> Float[Array, "B L2 *F"]:
    return jnp.take_along_axis(rows, index.reshape(*index.shape, *(1,) * (rows.ndim - 2)), axis=1)
