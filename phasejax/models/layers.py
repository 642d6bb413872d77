# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Layers that every decoder shares, with the dtypes and initializers of the configuration."""

import itertools

import jax
import jax.numpy as jnp
from flax import nnx

from phasejax.models.config import ModelConfig
from phasejax.models.project import project
from phasejax.typing import Array, Float


def weight_init(config: ModelConfig, fan_in: int) -> nnx.Initializer:
    """Normal weights with the configured standard deviation."""
    return nnx.initializers.normal(fan_in**-0.5 if config.init_std is None else config.init_std)


class Linear(nnx.Module):
    """A projection without bias; kernel is [inputs, outputs]."""

    def __init__(self, config: ModelConfig, inputs: int, outputs: int, *, rngs: nnx.Rngs):
        init = weight_init(config, inputs)
        self.kernel = nnx.Param(
            init(rngs.params(), (inputs, outputs), jnp.dtype(config.param_dtype))
        )
        self.dtype = jnp.dtype(config.compute_dtype)

    def __call__(self, x: Float[Array, "*B I"]) -> Float[Array, "*B O"]:
        return project(x.astype(self.dtype), self.kernel[...].astype(self.dtype))


def project_together(x: Float[Array, "*B I"], *layers: Linear) -> list[Float[Array, "*B O"]]:
    """Applies several projections to one input as one product, which reads the input once."""
    kernels = [layer.kernel[...].astype(layer.dtype) for layer in layers]
    product = project(x.astype(layers[0].dtype), jnp.concatenate(kernels, axis=1))
    edges = list(itertools.accumulate(kernel.shape[1] for kernel in kernels))
    return jnp.split(product, edges[:-1], axis=-1)


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
        self.gate = Linear(config, config.width, config.mlp_width, rngs=rngs)
        self.up = Linear(config, config.width, config.mlp_width, rngs=rngs)
        self.down = Linear(config, config.mlp_width, config.width, rngs=rngs)

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        gate, up = project_together(x, self.gate, self.up)
        return self.down(jax.nn.silu(gate) * up)
