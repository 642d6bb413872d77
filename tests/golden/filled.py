# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""A DeepSeek-V4 decoder whose weights are those of `fill`, and the names that checkpoints use."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from phasejax.checkpoints.deepseek_v4_names import Layout, tensor_name
from phasejax.models.deepseek_v4.config import DeepseekV4Config
from phasejax.models.deepseek_v4.decoder import DeepseekV4
from tests.golden import fill


def tensors(config: DeepseekV4Config, layout: Layout = "released") -> dict[str, np.ndarray]:
    """What a checkpoint of this model holds."""
    _, state = nnx.split(nnx.eval_shape(lambda: DeepseekV4(config, rngs=nnx.Rngs(0))))
    found = {}
    for path, variable in nnx.to_flat_state(state):
        name, shape = tensor_name(path, layout), variable.shape
        if path[-1] == "output_down":
            shape = (shape[0] * shape[1], shape[2])
        names = [name.replace("*", str(i)) for i in range(shape[0])] if "*" in name else [name]
        shape = shape[1:] if "*" in name else shape
        found |= {name: fill.tensor(name, shape, config.num_experts) for name in names}
    return found


def model(config: DeepseekV4Config) -> DeepseekV4:
    """The decoder itself."""
    graph, state = nnx.split(nnx.eval_shape(lambda: DeepseekV4(config, rngs=nnx.Rngs(0))))
    held, flat = tensors(config), []
    for path, variable in nnx.to_flat_state(state):
        name, shape = tensor_name(path, "released"), variable.shape
        if "*" in name:
            array = np.stack([held[name.replace("*", str(i))] for i in range(shape[0])])
        else:
            array = held[name].reshape(shape)
        flat.append((path, variable.replace(jnp.asarray(array, variable.dtype))))
    return nnx.merge(graph, nnx.from_flat_state(flat))


def attention_weights(layer: nnx.Module) -> dict[str, np.ndarray]:
    """Weights of one attention layer by the released names, without `layers.N.attn.`."""
    found = {}
    for path, variable in nnx.to_flat_state(nnx.state(layer)):
        name = tensor_name(("blocks", 0, "attention", *path), "released")
        array = np.asarray(variable[...], np.float64)
        if path[-1] == "output_down":
            array = array.reshape(-1, array.shape[-1])
        found[name.removeprefix("layers.0.attn.")] = array
    return found
