# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Generation: the likeliest tokens are those that calls over the whole sequence choose."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import phasejax
from phasejax.models.deepseek_v4.presets import preset
from tests.golden import fill, filled

CONFIG = dataclasses.replace(preset("deepseek_v4_tiny"), num_layers=2, compress_ratios=(0, 4))
whole = nnx.jit(lambda model, tokens: model(tokens))


@pytest.fixture(scope="module")
def model():
    return filled.model(CONFIG)


@pytest.mark.parametrize("padding", ["left", "right"])
def test_greedy_tokens_are_those_of_whole_sequences(model, padding):
    prompts = [fill.tokens(40, 64)[0, :6], fill.tokens(40, 64)[0, 20:23]]
    tokens = np.full((2, 6), 63, np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[slice(6 - len(prompt), 6) if padding == "left" else slice(len(prompt))] = prompt
    got = phasejax.generate(
        model,
        jnp.asarray(tokens),
        max_new_tokens=9,
        lengths=jnp.asarray([6, 3], jnp.int32),
        padding=padding,
    )
    for prompt, new in zip(prompts, np.asarray(got), strict=True):
        sequence = np.concatenate([prompt, new, np.zeros(15 - len(prompt) - 9, np.int32)])
        logits = np.asarray(whole(model, jnp.asarray(sequence[None])))[0]
        chosen = logits.argmax(-1)[len(prompt) - 1 : len(prompt) + 8]
        np.testing.assert_array_equal(new, chosen)


def test_draws_are_a_function_of_the_key(model):
    tokens = jnp.asarray(fill.tokens(4, 64))
    draw = [
        phasejax.generate(
            model, tokens, max_new_tokens=9, temperature=5.0, key=jax.random.key(seed)
        )
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(draw[0], draw[1])
    assert (draw[0] != draw[2]).any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(max_new_tokens=0), "max_new_tokens=0"),
        (dict(temperature=0.5), "a key"),
        (dict(temperature=-1.0), "temperature=-1.0"),
        (dict(lengths=jnp.asarray([0])), "at least one token"),
        (dict(lengths=jnp.asarray([5])), r"lengths=\[5\], but rows hold 4 tokens"),
        (dict(tokens=jnp.zeros((1, 0), jnp.int32)), "hold no token"),
    ],
)
def test_bad_input_is_refused(model, changes, message):
    arguments = {"tokens": jnp.asarray(fill.tokens(4, 64)), "max_new_tokens": 2} | changes
    with pytest.raises(ValueError, match=message):
        phasejax.generate(model, **arguments)
