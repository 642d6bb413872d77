# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Layers that every decoder shares, with the dtypes and initializers of the configuration."""

import jax
import jax.numpy as jnp
from flax import nnx

from phasejax.models.config import ModelConfig
from phasejax.typing import Array, Float


def weight_init(config: ModelConfig, fan_in: int) -> nnx.Initializer:
    """Normal weights with the configured standard deviation."""
    return nnx.initializers.normal(fan_in**-0.5 if config.init_std is None else config.init_std)


def linear(config: ModelConfig, inputs: int, outputs: int, *, rngs: nnx.Rngs) -> nnx.Linear:
    """A projection without bias."""
    return nnx.Linear(
        inputs,
        outputs,
        use_bias=False,
        kernel_init=weight_init(config, inputs),
        dtype=jnp.dtype(config.compute_dtype),
        param_dtype=jnp.dtype(config.param_dtype),
        rngs=rngs,
    )


def rms_norm(config: ModelConfig, channels: int, *, rngs: nnx.Rngs) -> nnx.RMSNorm:
    """RMSNorm over the last axis."""
    return nnx.RMSNorm(
        channels,
        epsilon=config.norm_eps,
        dtype=jnp.dtype(config.compute_dtype),
        param_dtype=jnp.dtype(config.param_dtype),
        rngs=rngs,
    )


class SwiGLU(nnx.Module):
    """Gated MLP: down(silu(gate(x)) * up(x)) (arXiv:2002.05202)."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.gate = linear(config, config.width, config.mlp_width, rngs=rngs)
        self.up = linear(config, config.width, config.mlp_width, rngs=rngs)
        self.down = linear(config, config.mlp_width, config.width, rngs=rngs)

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))
