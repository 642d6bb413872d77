# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding (arXiv:2104.09864), full, partial or none, as in Qwen3."""

import jax.numpy as jnp
import numpy as np

from phasejax.typing import Array, Float, Int


def rotate(
    x: Float[Array, "B X A H"], position: Int[Array, "*R X"], *, theta: float, rotary_dim: int
) -> Float[Array, "B X A H"]:
    """Rotates the first rotary_dim channels of every head by the angle of their position.

    Args:
        x: queries or keys; A is the axis of heads.
        position: position of each row, [X], or [B, X] where batch rows differ.
        theta: base of the frequencies.
        rotary_dim: channels that are rotated, even, 0 .. H; the rest pass unchanged.

    Returns:
        The rotated array, in the dtype of x; angles are float32.
    """
    if rotary_dim == 0:
        return x
    half = rotary_dim // 2
    frequency = theta ** -(np.arange(half, dtype=np.float32) / half)
    angle = jnp.atleast_2d(position).astype(jnp.float32)[..., None] * frequency
    cos, sin = jnp.cos(angle)[..., None, :], jnp.sin(angle)[..., None, :]
    first, second = x[..., :half].astype(jnp.float32), x[..., half:rotary_dim].astype(jnp.float32)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return jnp.concatenate([rotated.astype(x.dtype), x[..., rotary_dim:]], axis=-1)
