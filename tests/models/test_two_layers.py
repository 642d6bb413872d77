# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Two layers: each with parameters of its own, and gates of what its compressor reads."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from phasejax.models.build import model_structure
from phasejax.models.config import ModelConfig

from .test_forward import (
    OVERLAP,
    SMALL,
    TOKENS,
    VOCABULARY,
    attention,
    norm,
    random_params,
    softmax,
)


def test_two_layers_and_their_gates_are_what_their_definition_says():
    config = ModelConfig(**SMALL | OVERLAP | {"num_layers": 2})
    params, graph = random_params(config), model_structure(config)
    tokens = np.random.default_rng(0).integers(VOCABULARY, size=TOKENS).astype(np.int32)
    logits, gates = jax.jit(lambda p, t: (nnx.merge(graph, p)(t), nnx.merge(graph, p).gates(t)))(
        params, jnp.asarray(tokens[None])
    )
    weights = jax.tree.map(lambda x: np.asarray(x, np.float64), nnx.to_pure_dict(params))
    x = weights["embed"]["embedding"][tokens]
    starts = range(0, TOKENS - 8 + 1, 4)
    for layer, found in enumerate(gates):
        block = weights["blocks"][layer]
        h = norm(x, block["attention_norm"]["scale"])
        for name, gate in found.items():
            pool = block["attention"]["compressor"][name]
            wanted = [
                softmax(
                    np.einsum("wd,wdk->wk", h[start : start + 8], pool["gate_map"])
                    + pool["gate_bias"]
                )
                for start in starts
            ]
            np.testing.assert_allclose(gate[0, ..., 0], wanted, rtol=1e-3, atol=1e-5)
        x = x + attention(block["attention"], h, config)
        h, mlp = norm(x, block["mlp_norm"]["scale"]), block["mlp"]
        gate = h @ mlp["gate"]["kernel"]
        x = x + (gate / (1 + np.exp(-gate)) * (h @ mlp["up"]["kernel"])) @ mlp["down"]["kernel"]
    wanted = norm(x, weights["norm"]["scale"]) @ weights["head"]["kernel"]
    np.testing.assert_allclose(logits[0], wanted, rtol=1e-3, atol=1e-3)
