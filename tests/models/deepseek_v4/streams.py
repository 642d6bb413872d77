# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Two streams of a small decoder, fed in steps of one compiled shape.

Streams are compared with one call over the whole sequence: 1e-5 of the largest logit, and the same
argmax.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from phasejax.models.cache import Cache
from phasejax.models.deepseek_v4.decoder import DeepseekV4
from phasejax.models.deepseek_v4.presets import preset
from tests.golden import fill

# A CSA layer and an HCA layer; far fewer entries are read than are visible.
CONFIG = dataclasses.replace(
    preset("deepseek_v4_tiny"), num_layers=2, compress_ratios=(4, 128), streams=2
)
# V4.1's windows of 2 and of 1, shared entries and picks, a search in two levels.
V41 = dataclasses.replace(
    CONFIG,
    num_layers=4,
    compress_ratios=(2, 2, 1, 1),
    kv_sources=(0, 2),
    index_sources=(0, 2, 3),
    candidate_source=2,
    candidate_size=2,
    candidate_blocks=3,
    query_head_norm=False,
    norm_eps=1e-20,
)
LENGTH, WIDTH = 140, 12
TOKENS = np.concatenate([fill.tokens(LENGTH, 64), fill.tokens(2 * LENGTH, 64)[:, LENGTH:]])

Rows = list[np.ndarray]


@nnx.jit
def whole(model: DeepseekV4, tokens: jax.Array) -> jax.Array:
    return model(tokens)


@nnx.jit
def step(
    model: DeepseekV4, tokens: jax.Array, cache: Cache, lengths: jax.Array
) -> tuple[jax.Array, Cache]:
    return model(tokens, cache=cache, lengths=lengths)


def new_cache(model: DeepseekV4) -> Cache:
    return model.init_cache(2, 160)


def feed(model: DeepseekV4, cache: Cache, *rows, width: int = WIDTH) -> tuple[Rows, Cache]:
    """Feeds each of the two streams a list of tokens of its own in one step."""
    padded = np.zeros((2, width), np.int32)
    for row, tokens in zip(padded, rows, strict=True):
        row[: len(tokens)] = tokens
    lengths = jnp.asarray([len(tokens) for tokens in rows], jnp.int32)
    logits, cache = step(model, jnp.asarray(padded), cache, lengths)
    return [np.asarray(logits[b, : len(tokens)]) for b, tokens in enumerate(rows)], cache


def feed_cuts(model: DeepseekV4, cache: Cache, *cuts: int) -> tuple[Rows, Cache]:
    """Feeds both streams from where they stand up to each cut; logits of all of it."""
    start, parts = int(cache.length[0]), []
    for cut in cuts:
        while start < cut:
            end = min(cut, start + WIDTH)
            part, cache = feed(model, cache, TOKENS[0, start:end], TOKENS[1, start:end])
            parts.append(part)
            start = end
    return [np.concatenate(row) for row in zip(*parts, strict=True)], cache


def assert_close(got: Rows, wanted: Rows | np.ndarray, scale: np.ndarray) -> None:
    for one, other in zip(got, wanted, strict=True):
        assert np.abs(one - other).max(initial=0) <= 1e-5 * np.abs(scale).max()
        np.testing.assert_array_equal(one.argmax(-1), other.argmax(-1))
