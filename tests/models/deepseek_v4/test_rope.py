# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Both sides of `rotary_dtype`: float32 tables, or tables rounded as transformers rounds them."""

import dataclasses

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from phasejax.models.deepseek_v4.rope import Rotary, rotate
from tests.golden import filled
from tests.models.deepseek_v4.streams import CONFIG

BFLOAT16 = ml_dtypes.bfloat16


def by_hand(x: np.ndarray, position: int, frequencies: np.ndarray, *, rounds: bool) -> np.ndarray:
    """A head's last channels, turned pair by pair in float64."""
    y = x.astype(np.float64)
    first = len(y) - 2 * len(frequencies)
    for i, frequency in enumerate(frequencies):
        angle = np.float32(position) * frequency
        cos, sin = np.cos(angle), np.sin(angle)
        if rounds:
            cos, sin = (np.float64(table.astype(BFLOAT16)) for table in (cos, sin))
        even, odd = y[first + 2 * i], y[first + 2 * i + 1]
        y[first + 2 * i : first + 2 * i + 2] = even * cos - odd * sin, odd * cos + even * sin
    return y


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("position", [0, 3, 100_003])
def test_tables_are_rounded_or_not(rounds, position):
    rotary = Rotary(10_000.0, 8, rounds_sines=rounds)
    x = np.random.default_rng(position).normal(size=12).astype(BFLOAT16)
    got = rotate(jnp.asarray(x)[None, None, None], jnp.asarray([position]), rotary)[0, 0, 0]
    frequencies = rotary.frequencies()
    right, wrong = (
        by_hand(x, position, frequencies, rounds=side).astype(BFLOAT16)
        for side in (rounds, not rounds)
    )
    np.testing.assert_allclose(np.asarray(got, np.float64), right.astype(np.float64), rtol=1e-2)
    distance = [
        np.abs(np.asarray(got, np.float64) - y.astype(np.float64)).sum() for y in (right, wrong)
    ]
    assert distance[0] < distance[1] or position == 0


def test_every_rotation_of_a_decoder_follows_the_switch():
    rounded = dataclasses.replace(CONFIG, rotary_dtype="compute")
    for layer in range(len(CONFIG.compress_ratios)):
        assert rounded.rotary(layer) == dataclasses.replace(CONFIG.rotary(layer), rounds_sines=True)
    indexer = filled.model(rounded).blocks[0].attention.indexer
    assert indexer.rotary.rounds_sines
