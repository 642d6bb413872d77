# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The rounding that DeepSeek's V4 code does to what it caches: values change, dtypes do not.

Entries and exact keys: FP8 e4m3 in groups of 64, the rotated channels excepted. Index queries and
keys: an orthonormal Hadamard transform, then FP4 e2m1 in groups of 32. Scales are powers of two.
Gradients pass as if nothing were rounded.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.products import product
from phasejax.models.deepseek_v4.config import FP4_GROUP, FP8_GROUP
from phasejax.typing import Array, Float

FP8_MAX, FP8_SMALLEST = 448.0, 1e-4
FP4_MAX, FP4_SMALLEST = 6.0, 6.0 * 2.0**-126


def _power_of_two_at_least(x: Float[Array, "*B"]) -> Float[Array, "*B"]:
    mantissa, exponent = jnp.frexp(x)  # x = mantissa * 2 ** exponent, 0.5 <= mantissa < 1
    return jnp.ldexp(jnp.ones_like(x), jnp.where(mantissa == 0.5, exponent - 1, exponent))


def _round_groups(
    x: Array, group: int, largest: float, smallest: float, to_grid: Callable[[Array], Array]
) -> Array:
    groups = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, group)
    top = jnp.maximum(jnp.max(jnp.abs(groups), axis=-1, keepdims=True), smallest)
    scale = _power_of_two_at_least(top / largest)
    rounded = to_grid(jnp.clip(groups / scale, -largest, largest)) * scale
    rounded = rounded.reshape(x.shape).astype(x.dtype)
    return x + jax.lax.stop_gradient(rounded - x)


def _to_e4m3(x: Array) -> Array:
    return x.astype(jnp.float8_e4m3fn).astype(jnp.float32)


def _to_e2m1(x: Array) -> Array:
    size = jnp.abs(x)
    step = jnp.where(size < 2, 0.5, jnp.where(size < 4, 1.0, 2.0))
    return jnp.round(x / step) * step


def round_entry(x: Float[Array, "*B H"], rotary_dim: int) -> Float[Array, "*B H"]:
    """FP8 rounding of all but the last rotary_dim channels."""
    kept = x.shape[-1] - rotary_dim
    rounded = _round_groups(x[..., :kept], FP8_GROUP, FP8_MAX, FP8_SMALLEST, _to_e4m3)
    return jnp.concatenate([rounded, x[..., kept:]], axis=-1)


def hadamard(x: Float[Array, "*B H"]) -> Float[Array, "*B H"]:
    """The orthonormal Hadamard transform of the last axis, whose size is a power of two."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < x.shape[-1]:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    matrix = jnp.asarray(matrix * len(matrix) ** -0.5)
    return product("...h,gh->...g", x.astype(jnp.float32), matrix).astype(x.dtype)


def round_index(x: Float[Array, "*B H"]) -> Float[Array, "*B H"]:
    """FP4 rounding of index queries or keys in the Hadamard basis, which both have to be in."""
    return _round_groups(hadamard(x), FP4_GROUP, FP4_MAX, FP4_SMALLEST, _to_e2m1)
