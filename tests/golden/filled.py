# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""A DeepSeek-V4 decoder whose weights are those of `fill`, and the names that checkpoints use."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from phasejax.checkpoints.deepseek_v4_names import Layout, tensor_name
from phasejax.checkpoints.deepseek_v4_tensors import stored, structure
from phasejax.models.deepseek_v4.config import DeepseekV4Config
from phasejax.models.deepseek_v4.decoder import DeepseekV4
from tests.golden import fill


def tensors(config: DeepseekV4Config, layout: Layout = "released") -> dict[str, np.ndarray]:
    """What a checkpoint of this model holds."""
    parts = [stored(path, leaf.shape, layout) for path, leaf in structure(config)[1]]
    return {
        name: fill.tensor(name, part.shape, config.num_experts)
        for part in parts
        for name in part.names
    }


def model(config: DeepseekV4Config) -> DeepseekV4:
    """The decoder itself."""
    graph, leaves = structure(config)
    held, flat = tensors(config), []
    for path, leaf in leaves:
        names = stored(path, leaf.shape, "released").names
        array = np.stack([held[name] for name in names]).reshape(leaf.shape)
        flat.append((path, leaf.replace(jnp.asarray(array, leaf.dtype))))
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
