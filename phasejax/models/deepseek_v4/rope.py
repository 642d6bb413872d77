# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Rotary positions of DeepSeek-V4: the last channels of a head, in interleaved pairs, with YaRN.

RoPE is arXiv:2104.09864, YaRN arXiv:2309.00071 (its "NTK-by-parts" frequencies).
"""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np

from phasejax.typing import Array, Float, Int
from phasejax.validation import check_fields


@dataclasses.dataclass(frozen=True)
class Yarn:
    """Extension of the context by slower rotation of the slow frequencies.

    Attributes:
        factor: how much slower the slowest ones turn.
        original_length: context length before the extension.
        beta_fast: frequencies with more turns than this over that length are kept.
        beta_slow: those with fewer are slowed by the whole factor; in between it is a blend.
        attention_factor: factor of sines and cosines. The released models have none, that is 1.
    """

    factor: float = 16.0
    original_length: int = 65_536
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("factor", "original_length", "beta_fast", "beta_slow", "attention_factor"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)}, but YaRN needs a positive {name}.")
        if self.beta_fast < self.beta_slow:
            raise ValueError(
                f"beta_fast={self.beta_fast} is below beta_slow={self.beta_slow}: exchange them."
            )


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Which frequencies rotate which channels.

    Attributes:
        theta: base of the frequencies.
        dim: rotated channels, the last ones of a head, even.
        yarn: extension of the context, or None.
        rounds_sines: rounds sines and cosines to the dtype of what is rotated.
    """

    theta: float
    dim: int
    yarn: Yarn | None = None
    rounds_sines: bool = False

    def frequencies(self) -> np.ndarray:
        """Radians a token of each pair of channels, float32 [dim / 2]."""
        pairs = np.arange(self.dim // 2)
        plain = self.theta ** -(pairs / (self.dim // 2))
        if self.yarn is None:
            return plain.astype(np.float32)

        def pair_with(turns: float) -> float:
            """The pair, a real number, that turns this often over the original length."""
            length = self.yarn.original_length / (2 * math.pi * turns)
            return self.dim * math.log(length) / (2 * math.log(self.theta))

        low = max(math.floor(pair_with(self.yarn.beta_fast)), 0)
        high = min(math.ceil(pair_with(self.yarn.beta_slow)), self.dim - 1)
        ramp = np.clip((pairs - low) / (high - low if high != low else 0.001), 0, 1)
        return (plain / self.yarn.factor * ramp + plain * (1 - ramp)).astype(np.float32)


def rotate(
    x: Float[Array, "B X A H"],
    position: Int[Array, "*R X"],
    rotary: Rotary,
    *,
    inverse: bool = False,
) -> Float[Array, "B X A H"]:
    """Rotates the last channels of every head by the angle of their position.

    Args:
        x: heads; A is their axis.
        position: position of each row, [X], or [B, X] where batch rows differ.
        rotary: frequencies.
        inverse: rotates back, which takes the position out of values that carry it.

    Returns:
        The rotated array, in the dtype of x; angles and products are float32.
    """
    angle = position.astype(jnp.float32)[..., None] * rotary.frequencies()
    factor = np.float32(rotary.yarn.attention_factor if rotary.yarn else 1.0)
    cos, sin = jnp.cos(angle) * factor, jnp.sin(angle) * factor
    if rotary.rounds_sines:
        cos, sin = (table.astype(x.dtype).astype(jnp.float32) for table in (cos, sin))
    cos, sin = cos[..., None, :], (-sin if inverse else sin)[..., None, :]
    if position.ndim == 1:
        cos, sin = cos[None], sin[None]
    kept, turned = jnp.split(x, [x.shape[-1] - rotary.dim], axis=-1)
    pairs = turned.astype(jnp.float32).reshape(*turned.shape[:-1], rotary.dim // 2, 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    pairs = jnp.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1)
    return jnp.concatenate([kept, pairs.reshape(turned.shape).astype(x.dtype)], axis=-1)
