# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Layers of the DeepSeek-V4 decoder; weights are [outputs, inputs], as the checkpoints store them.

Every product accumulates in float32, and products of float32 are not shortened on accelerators.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from pallas_kernels.products import product
from phasejax.models.deepseek_v4.config import DeepseekV4Config
from phasejax.typing import Array, Float


class Fixed(nnx.Variable):
    """An array that is stored with a model and has no gradient."""


class Keys:
    """Keys of fresh parameters, as `nnx.Rngs` gives them, counted in Python.

    The counter of nnx.Rngs is an array: tracing a model of a thousand weights would take minutes.
    """

    def __init__(self, key: Array):
        self.key, self.count = key, 0

    def params(self) -> Array:
        """The next key."""
        self.count += 1
        return jax.random.fold_in(self.key, self.count)


Rngs = nnx.Rngs | Keys


def rms_normalize(x: Float[Array, "*B H"], eps: float) -> Float[Array, "*B H"]:
    """Divides by the root of the mean square over the last axis; float32, without weights."""
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + eps)


def normal(config: DeepseekV4Config, shape: tuple[int, ...], rngs: Rngs) -> nnx.Param:
    """A fresh weight."""
    weight = jax.random.normal(rngs.params(), shape, jnp.float32) * config.init_std
    return nnx.Param(weight.astype(config.param_dtype))


class Linear(nnx.Module):
    """A projection without bias.

    Args:
        config: dtypes and the standard deviation of fresh weights.
        inputs: channels in.
        outputs: channels out.
        exact: computes in float32 and returns it, whatever the compute dtype.
    """

    def __init__(
        self,
        config: DeepseekV4Config,
        inputs: int,
        outputs: int,
        *,
        exact: bool = False,
        rngs: Rngs,
    ):
        self.weight = normal(config, (outputs, inputs), rngs)
        self.dtype = jnp.dtype(jnp.float32 if exact else config.compute_dtype)

    def __call__(self, x: Float[Array, "*B I"]) -> Float[Array, "*B O"]:
        y = product("...i,oi->...o", x.astype(self.dtype), self.weight[...].astype(self.dtype))
        return y.astype(self.dtype)


class RMSNorm(nnx.Module):
    """RMSNorm over the last axis; weight and arithmetic in float32."""

    def __init__(self, config: DeepseekV4Config, channels: int):
        self.weight = nnx.Param(jnp.ones(channels, jnp.float32))
        self.eps = config.norm_eps
        self.dtype = jnp.dtype(config.compute_dtype)

    def __call__(self, x: Float[Array, "*B H"]) -> Float[Array, "*B H"]:
        normalized = rms_normalize(x, self.eps)
        return (normalized * _across(self.weight[...], normalized.ndim)).astype(self.dtype)


def _across(weight: Float[Array, "H"], ndim: int) -> Array:
    return weight.reshape((1,) * (ndim - 1) + weight.shape)
