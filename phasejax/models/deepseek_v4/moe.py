# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Mixture of experts with a shared one; DeepSeek-V4 (arXiv:2606.19348, section 2.1).

Scores are sqrt(softplus(gate x)). The largest scores plus a bias choose the experts; in the first
layers a table over token ids chooses instead. The scores without bias weigh them, normalised.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pallas_kernels.products import product
from phasejax.models.deepseek_v4.config import DeepseekV4Config
from phasejax.models.deepseek_v4.layers import Fixed, Linear, Rngs, normal
from phasejax.typing import Array, Float, Hidden, Int, Tokens

# Keeps the weights of a token finite when the scores of all its experts have vanished.
SMALLEST_TOTAL = 1e-20


def sqrt_softplus(x: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """sqrt(softplus(x)); where softplus vanishes so do value and gradient."""
    softplus = jax.nn.softplus(x)
    positive = softplus > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, softplus, 1)), 0)


class Router(nnx.Module):
    """Chooses experts for every token, and their weights.

    Args:
        config: counts and scale.
        hashed: whether a table over token ids chooses.
        rngs: parameter keys.
    """

    def __init__(self, config: DeepseekV4Config, *, hashed: bool, rngs: Rngs):
        self.config = config
        experts, chosen = config.num_experts, config.experts_per_token
        self.gate = Linear(config, config.width, experts, exact=True, rngs=rngs)
        self.bias = None if hashed else Fixed(jnp.zeros(experts, jnp.float32))
        self.table = Fixed(_fresh_table(config.vocab_size, experts, chosen)) if hashed else None

    def __call__(
        self, hidden: Hidden, tokens: Tokens
    ) -> tuple[Int[Array, "B T A"], Float[Array, "B T A"]]:
        """The experts of each token and their weights, float32."""
        scores = sqrt_softplus(self.gate(hidden))
        if self.table is not None:
            experts = self.table[...][tokens]
        else:
            biased = scores if self.bias is None else scores + self.bias[...][None, None]
            experts = jax.lax.top_k(biased, self.config.experts_per_token)[1]
        weights = jnp.take_along_axis(scores, experts, axis=-1)
        total = weights.sum(-1, keepdims=True) + SMALLEST_TOTAL
        return experts, weights / total * self.config.route_scale


def _fresh_table(vocab_size: int, experts: int, chosen: int) -> Int[Array, "V A"]:
    """Neighbouring ids go to neighbouring experts, and an id's experts are distinct."""
    ids = jnp.arange(vocab_size, dtype=jnp.int32)[:, None] * chosen
    return (ids + jnp.arange(chosen, dtype=jnp.int32)[None]) % experts


def clamped_swiglu(
    gate: Float[Array, "*B I"], up: Float[Array, "*B I"], limit: float | None
) -> Float[Array, "*B I"]:
    """silu(gate) * up after clamping gate from above and up on both sides."""
    if limit is not None:
        gate, up = jnp.minimum(gate, limit), jnp.clip(up, -limit, limit)
    return jax.nn.silu(gate) * up


class Expert(nnx.Module):
    """The expert that every token visits."""

    def __init__(self, config: DeepseekV4Config, *, rngs: Rngs):
        self.gate = Linear(config, config.width, config.expert_width, rngs=rngs)
        self.up = Linear(config, config.width, config.expert_width, rngs=rngs)
        self.down = Linear(config, config.expert_width, config.width, rngs=rngs)
        self.limit = config.swiglu_limit if config.clamp_shared else None

    def __call__(self, hidden: Hidden) -> Hidden:
        return self.down(clamped_swiglu(self.gate(hidden), self.up(hidden), self.limit))


class Experts(nnx.Module):
    """The routed experts, stacked."""

    def __init__(self, config: DeepseekV4Config, *, rngs: Rngs):
        self.config = config
        experts, width, inner = config.num_experts, config.width, config.expert_width
        self.gate = normal(config, (experts, inner, width), rngs)
        self.up = normal(config, (experts, inner, width), rngs)
        self.down = normal(config, (experts, width, inner), rngs)

    def __call__(
        self, hidden: Hidden, experts: Int[Array, "B T A"], weights: Float[Array, "B T A"]
    ) -> Hidden:
        """The weighted sum of what a token's experts make of it."""
        visits, chosen = experts.size, experts.shape[-1]
        rows = hidden.reshape(-1, hidden.shape[-1])
        few = visits <= self.config.num_experts
        multiply = _each_its_own if few else _in_groups
        order = jnp.arange(visits) if few else jnp.argsort(experts.reshape(-1))
        expert = experts.reshape(-1)[order]
        visiting = rows[order // chosen]
        dtype = jnp.dtype(self.config.compute_dtype)
        gate, up = (
            multiply(visiting, matrix[...].astype(dtype), expert) for matrix in (self.gate, self.up)
        )
        inner = clamped_swiglu(gate, up, self.config.swiglu_limit)
        inner = (inner * weights.reshape(-1)[order][:, None]).astype(dtype)
        output = multiply(inner, self.down[...].astype(dtype), expert)
        output = jnp.zeros((visits, rows.shape[-1]), output.dtype).at[order].set(output)
        return output.reshape(*experts.shape, -1).sum(-2).astype(hidden.dtype)


def _each_its_own(
    rows: Float[Array, "R I"], matrices: Float[Array, "A O I"], expert: Int[Array, "R"]
) -> Float[Array, "R O"]:
    """Every row times a copy of its own matrix: for fewer rows than experts."""
    return product("ri,roi->ro", rows, matrices[expert])


def _in_groups(
    rows: Float[Array, "R I"], matrices: Float[Array, "A O I"], expert: Int[Array, "R"]
) -> Float[Array, "R O"]:
    """Rows sorted by expert, times one matrix a group."""
    dimensions = jax.lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((1,), (2,)), ((), ())),
        lhs_ragged_dimensions=[0],
        rhs_group_dimensions=[0],
    )
    return jax.lax.ragged_dot_general(
        rows,
        matrices,
        jnp.bincount(expert, length=len(matrices)).astype(jnp.int32),
        dimensions,
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=np.float32,
    )


class MixtureOfExperts(nnx.Module):
    """Routed experts and the shared one."""

    def __init__(self, config: DeepseekV4Config, layer: int, *, rngs: Rngs):
        self.router = Router(config, hashed=layer < config.num_hash_layers, rngs=rngs)
        self.experts = Experts(config, rngs=rngs)
        self.shared = Expert(config, rngs=rngs)

    def __call__(self, hidden: Hidden, tokens: Tokens) -> Hidden:
        experts, weights = self.router(hidden, tokens)
        return self.experts(hidden, experts, weights) + self.shared(hidden)
