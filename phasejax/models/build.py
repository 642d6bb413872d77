# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""From a configuration to a model's structure and parameters."""

import functools
from collections.abc import Hashable
from typing import Any

import jax
from flax import nnx

from phasejax._compat import jax_version
from phasejax.models.config import ModelConfig
from phasejax.models.qwen3 import Qwen3

# Without arguments, the hint would be that of Flax's own type variables, which is deprecated.
Params = nnx.State[Hashable, Any]


def compiler_options(level: int) -> dict[str, int | bool] | None:
    """Options for jax.jit that rule how long compiling for a CPU takes.

    The plain loop emitters compile a training step in half the time of the fusion emitters, at the
    same speed; the name of that option is known to hold for JAX 0.10 only.

    Args:
        level: LLVM's optimization: 0 for what runs once; 1 for what runs often, as fast as the
            default and compiled sooner.
    """
    if jax.default_backend() != "cpu":
        return None
    options: dict[str, int | bool] = {"xla_backend_optimization_level": level}
    if jax_version() < (0, 11):
        options["xla_cpu_use_fusion_emitters"] = False
    return options


def model_structure(config: ModelConfig) -> nnx.GraphDef:
    """The model without its parameters; nothing is allocated."""
    graph, _ = nnx.split(nnx.eval_shape(lambda: Qwen3(config, rngs=nnx.Rngs(0))))
    return graph


def _fresh_params(config: ModelConfig, seed: int) -> Params:
    key = jax.random.key(seed, impl="rbg")  # compiles in half the time of the default generator
    return nnx.state(Qwen3(config, rngs=nnx.Rngs(params=key)), nnx.Param)


def init_params(config: ModelConfig, seed: int) -> Params:
    """Fresh parameters, a pure function of the configuration and the seed."""
    fresh = functools.partial(_fresh_params, config, seed)
    return jax.jit(fresh, compiler_options=compiler_options(0))()


def abstract_params(config: ModelConfig) -> Params:
    """Shapes and dtypes of the parameters; nothing is allocated or compiled."""
    return jax.eval_shape(functools.partial(_fresh_params, config, 0))
