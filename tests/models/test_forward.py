# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""A whole one-layer decoder, written again in float64 from the definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from phasejax.models.build import model_structure
from phasejax.models.config import ModelConfig
from phasejax.models.qwen3 import Qwen3

TOKENS, VOCABULARY, WIDTH = 22, 11, 12
SMALL = {
    "vocab_size": VOCABULARY,
    "num_layers": 1,
    "width": WIDTH,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "mlp_width": 20,
    "rope_theta": 50.0,
    "tie_embeddings": False,
}
OVERLAP = {"attention": "compressed", "stride": 4}
VARIANTS = {
    "full": {},
    "full_tied_embeddings": {"tie_embeddings": True, "sink": True, "qk_norm": False},
    "w8s8_2kv": {"attention": "compressed"},
    "w8s4": OVERLAP,
    "stride_start": OVERLAP | {"rotary_anchor": "stride_start"},
    "deepseek": OVERLAP
    | {"gate": "vector", "tie_kv": True, "rope_fraction": 0.125, "rotary_anchor": "stride_start"},
    "tail_sink": OVERLAP | {"exact_tokens": "tail", "sink": True, "qk_norm": False},
    "uniform_tied_post_norm": OVERLAP
    | {"gate": "uniform", "tie_kv": True, "post_norm": True, "local_window": 7},
}


def random_params(config: ModelConfig) -> nnx.State:
    rng = np.random.default_rng(5)
    model = nnx.eval_shape(lambda: Qwen3(config, rngs=nnx.Rngs(0)))
    draw = lambda x: jnp.asarray(rng.normal(size=x.shape) * 0.5, x.dtype)  # noqa: E731
    return jax.tree.map(draw, nnx.state(model, nnx.Param))


def norm(x, scale):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale


def rotate(x, position: int, config: ModelConfig):
    x, half = x.copy(), int(config.head_dim * config.rope_fraction) // 2
    for i in range(half):
        angle = position * config.rope_theta ** (-i / half)
        a, b = x[..., i].copy(), x[..., i + half].copy()
        x[..., i] = a * np.cos(angle) - b * np.sin(angle)
        x[..., i + half] = b * np.cos(angle) + a * np.sin(angle)
    return x


def softmax(x, axis=0):
    x = np.exp(x - x.max(axis, keepdims=True))
    return x / x.sum(axis, keepdims=True)


def pooled(pool: dict, tokens: np.ndarray, config: ModelConfig) -> np.ndarray:
    """One entry [K, H] of a branch from its window of hidden states [W, D]."""
    heads, dim = config.num_kv_heads, config.head_dim
    payload = np.stack([h @ c for h, c in zip(tokens, pool["payload"], strict=True)])
    payload = payload.reshape(config.window, heads, dim)
    if config.post_norm:
        payload = norm(payload, pool["post_norm"]["scale"])
    if config.gate == "uniform":
        return payload.mean(0)
    score = np.stack([h @ z for h, z in zip(tokens, pool["gate_map"], strict=True)])
    weight = softmax(score + pool["gate_bias"])
    return (weight.reshape(config.window, heads, -1) * payload).sum(0)


def attention(weights: dict, x: np.ndarray, config: ModelConfig) -> np.ndarray:
    """What attention adds to the residual stream [T, D], from x normalised."""
    heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim

    def finish(y, scale_name: str, position: int):
        y = norm(y, weights[scale_name]["scale"]) if config.qk_norm else y
        return rotate(y, position, config)

    keys, values = [], []
    for t, h in enumerate(x):
        keys.append(finish((h @ weights["key"]["kernel"]).reshape(kv_heads, dim), "key_norm", t))
        exact = (
            keys[-1] if config.tie_kv else (h @ weights["value"]["kernel"]).reshape(kv_heads, dim)
        )
        values.append(exact)
    entries = []  # last token, covered tokens, key, value
    window, stride = config.window, config.stride or config.window
    compressed = config.attention == "compressed"
    for start in range(0, len(x) - window + 1, stride) if compressed else ():
        at = start + window - stride if config.rotary_anchor == "stride_start" else start
        tokens, pools = x[start : start + window], weights["compressor"]
        key = finish(pooled(pools["key"], tokens, config), "key_norm", at)
        value = key if config.tie_kv else pooled(pools["value"], tokens, config)
        entries.append((start + window - 1, set(range(start, start + window)), key, value))
    out = np.zeros((len(x), heads, dim))
    for p, h in enumerate(x):
        query = finish((h @ weights["query"]["kernel"]).reshape(heads, dim), "query_norm", p)
        visible = [entry for entry in entries if entry[0] <= p]
        near = list(range(p + 1))
        if compressed and config.exact_tokens == "window":
            near = [t for t in near if t > p - config.local_window]
        elif compressed:
            near = [t for t in near if not any(t in entry[1] for entry in visible)]
        all_keys = np.stack([keys[t] for t in near] + [entry[2] for entry in visible])
        all_values = np.stack([values[t] for t in near] + [entry[3] for entry in visible])
        for n in range(heads):
            k = n * kv_heads // heads
            score = all_keys[:, k] @ query[n] / np.sqrt(dim)
            if config.sink:
                weight = softmax(np.append(score, weights["sink"][n]))[:-1]
            else:
                weight = softmax(score)
            out[p, n] = weight @ all_values[:, k]
    return out.reshape(len(x), -1) @ weights["output"]["kernel"]


def forward(params: nnx.State, tokens: np.ndarray, config: ModelConfig) -> np.ndarray:
    weights = jax.tree.map(lambda x: np.asarray(x, np.float64), nnx.to_pure_dict(params))
    block = weights["blocks"][0]
    x = weights["embed"]["embedding"][tokens]
    x = x + attention(block["attention"], norm(x, block["attention_norm"]["scale"]), config)
    h, mlp = norm(x, block["mlp_norm"]["scale"]), block["mlp"]
    gate = h @ mlp["gate"]["kernel"]
    x = x + (gate / (1 + np.exp(-gate)) * (h @ mlp["up"]["kernel"])) @ mlp["down"]["kernel"]
    x = norm(x, weights["norm"]["scale"])
    return x @ (
        weights["embed"]["embedding"].T if config.tie_embeddings else weights["head"]["kernel"]
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_a_decoder_is_what_its_definition_says(name):
    config = ModelConfig(**SMALL | VARIANTS[name])
    params, graph = random_params(config), model_structure(config)
    tokens = np.random.default_rng(0).integers(VOCABULARY, size=(2, TOKENS)).astype(np.int32)
    found = jax.jit(lambda p, t: nnx.merge(graph, p)(t))(params, jnp.asarray(tokens))
    wanted = np.stack([forward(params, row, config) for row in tokens])
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=2e-4)
