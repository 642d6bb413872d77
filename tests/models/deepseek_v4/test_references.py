# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The attention of V4, with its rounding, and of V4.1 against scalar loops in float64.

V4.1 was never compared with released code or weights: its reference was written from the paper's
formulas by someone who did not write the module.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasejax.models.deepseek_v4.attention import Shared
from phasejax.models.deepseek_v4.config import DeepseekV4Config
from phasejax.models.deepseek_v4.presets import preset
from tests.golden import filled
from tests.references import deepseek_v4_numpy as v4
from tests.references import deepseek_v41_numpy as v41

TINY = dataclasses.replace(
    preset("deepseek_v4_tiny"), width=12, num_layers=3, compress_ratios=(0, 4, 128)
)
V41 = dataclasses.replace(
    TINY,
    num_layers=7,
    compress_ratios=(0, 2, 2, 1, 1, 1, 1),
    kv_sources=(1, 3),
    index_sources=(1, 3, 5),
    candidate_source=3,
    candidate_size=3,
    candidate_blocks=3,
    query_head_norm=False,
    norm_eps=1e-20,
)
PLAN = v41.Plan(
    ratios=V41.compress_ratios,
    kv_sources=V41.kv_sources,
    index_sources=V41.index_sources,
    block_source=3,
    block_size=3,
    block_topk=3,
)


def sizes(config: DeepseekV4Config) -> v4.Sizes:
    return v4.Sizes(
        heads=config.num_heads,
        rope_dims=config.rotary_dim,
        groups=config.output_groups,
        index_heads=config.index_heads,
        index_topk=config.index_topk,
        window=config.local_window,
        eps=config.norm_eps,
        yarn_original=config.yarn.original_length,
        simulate=config.quantized,
    )


def inputs(layers: int, tokens: int, width: int) -> np.ndarray:
    rng = np.random.default_rng(7)
    return rng.normal(size=(layers, tokens, width)).astype(np.float32)


def ours(config: DeepseekV4Config, x: np.ndarray) -> list[np.ndarray]:
    """Outputs of every attention layer on inputs [layers, T, D], handing on what they share."""
    layers = [block.attention for block in filled.model(config).blocks]

    @jax.jit
    def run(x):
        shared, outputs, position = Shared(), [], jnp.arange(x.shape[1])[None]
        for layer, hidden in zip(layers, x, strict=True):
            output, shared, _ = layer(hidden[None], position, shared)
            outputs.append(output[0])
        return outputs

    return [np.asarray(output) for output in run(jnp.asarray(x))]


def assert_close(got: np.ndarray, wanted: np.ndarray, tolerance: float) -> None:
    assert np.abs(got - wanted).max() <= tolerance * np.abs(wanted).max()


@pytest.mark.parametrize("layer", range(3))
def test_v4_layers(layer):
    tokens = 130 if TINY.ratio(layer) == 128 else 30
    config = dataclasses.replace(TINY, num_layers=1, compress_ratios=(TINY.ratio(layer),))
    x = inputs(1, tokens, config.width)
    weights = filled.attention_weights(filled.model(config).blocks[0].attention)
    wanted = v4.attention(x[0], weights, sizes(config), config.ratio(0))
    assert_close(ours(config, x)[0], wanted, 1e-5)


@pytest.mark.parametrize("ratio", [0, 4])
def test_v4_layers_with_deepseeks_rounding(ratio):
    """A rounding that falls the other way for float32's last bits moves an output by its step."""
    config = dataclasses.replace(
        TINY,
        num_layers=1,
        compress_ratios=(ratio,),
        head_dim=72,
        rotary_dim=8,
        index_dim=32,
        quantized=True,
    )
    x = inputs(1, 30, config.width)
    weights = filled.attention_weights(filled.model(config).blocks[0].attention)
    wanted = v4.attention(x[0], weights, sizes(config), ratio)
    plain = v4.attention(x[0], weights, dataclasses.replace(sizes(config), simulate=False), ratio)
    got = ours(config, x)[0]
    error = np.abs(got - wanted).max(-1) / np.abs(wanted).max()
    assert np.median(error) < 1e-5  # most tokens are exact
    assert error.max() < 0.2 * np.abs(plain - wanted).max() / np.abs(wanted).max()


@pytest.mark.parametrize("tokens", [1, 2, 3, 31])
def test_v41_layers(tokens):
    """Shared entries, shared picks, both levels of the search, an odd number of tokens."""
    x = inputs(V41.num_layers, tokens, V41.width)
    layers = [block.attention for block in filled.model(V41).blocks]
    weights = [filled.attention_weights(layer) for layer in layers]
    # Each layer's own weights: the names of `attention_weights` leave out the layer's number.
    wanted, picks = v41.attention_of_layers(list(x), weights, sizes(V41), PLAN)
    for got, want in zip(ours(V41, x), wanted, strict=True):
        assert_close(got, want, 2e-5)
    if tokens == 31:
        assert picks[4] == picks[3] != picks[5] == picks[6]  # handed on, then selected anew


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(compress_ratios=(0, 4)), "one ratio for each layer"),
        (dict(compress_ratios=(0, 4, 16)), r"compress_ratios holds \[16\].* known how to compress"),
        (dict(compress_ratios=(0, 4, -4)), r"compress_ratios holds \[-4\]"),
        (dict(rotary_dim=18), "rotary_dim=18"),
        (dict(rotary_dim=10), "rotary_dim=10.* index_dim=8"),  # a head would be wide enough
        (dict(rotary_dim=0), "rotary_dim=0"),
        (dict(rotary_dim=3), "rotary_dim=3"),
        (dict(num_heads=3), "output_groups"),
        (dict(experts_per_token=5), "distinct experts"),
        (dict(index_topk=0), "index_topk"),
        (dict(kv_sources=(0,)), "no layer that is compressed"),
        (dict(kv_sources=(1,)), "nothing to read"),
        (dict(index_sources=(2,)), "no layer that has an indexer"),
        (dict(candidate_source=0), "no layer that selects"),
    ],
)
def test_contradictions_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(TINY, **changes)
