# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Cutting an axis of rows into tiles, and sums of gradients over tiles that share rows."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

# Keys and values of the same rows, or one array that serves as both.
Pair = tuple[Float[Array, "B X K H"], ...]


def power_of_two_at_most(x: int) -> int:
    """The largest power of two that is not above x; 1 for x < 1."""
    return 1 << max(x, 1).bit_length() - 1


def padded(x: Shaped[Array, "B X ..."], block: int, fill: float = 0) -> Shaped[Array, "B X2 ..."]:
    """Pads axis 1 to a multiple of `block`."""
    missing = -x.shape[1] % block
    if not missing:
        return x
    return jnp.pad(x, [(0, 0), (0, missing)] + [(0, 0)] * (x.ndim - 2), constant_values=fill)


def split(x: Shaped[Array, "B X ..."], block: int, fill: float = 0) -> Shaped[Array, "C B L ..."]:
    """Tiles of axis 1 in front, for `lax.map` or `lax.scan`; the last one padded with `fill`."""
    x = padded(x, block, fill)
    return jnp.moveaxis(x.reshape(x.shape[0], -1, block, *x.shape[2:]), 1, 0)


def join(x: Shaped[Array, "C B L ..."], length: int) -> Shaped[Array, "B X ..."]:
    """Undoes `split`."""
    x = jnp.moveaxis(x, 0, 1)
    return x.reshape(x.shape[0], -1, *x.shape[3:])[:, :length]


def take_rows(rows: Shaped[Array, "B E ..."], index: Int[Array, "B *X"]) -> Shaped[Array, "B ..."]:
    """Rows of axis 1 at `index`; a negative index gives row 0, for the caller to mask."""
    return jax.vmap(lambda r, at: r[jnp.maximum(at, 0)])(rows, index)


def add_rows(
    total: Float[Array, "B E ..."], index: Int[Array, "B *X"], update: Float[Array, "B ..."]
) -> Float[Array, "B E ..."]:
    """Adds to rows of axis 1 at `index`, in place inside a loop; a negative index adds nothing."""
    # Out of range upwards, since JAX counts negative indices from the end.
    index = jnp.where(index < 0, total.shape[1], index)
    add = jax.vmap(lambda t, at, u: t.at[at].add(u.astype(t.dtype), mode="drop"))
    return add(total, index, update)


def add_slice(
    total: Float[Array, "B E ..."], start: Int[Array, ""], update: Float[Array, "B X ..."]
) -> Float[Array, "B E ..."]:
    """Adds to consecutive rows of axis 1 from `start`, in place inside a loop."""
    old = jax.lax.dynamic_slice_in_dim(total, start, update.shape[1], axis=1)
    update = old + update.astype(total.dtype)
    return jax.lax.dynamic_update_slice_in_dim(total, update, start, axis=1)
