# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import numpy as np
import pytest
from flax import nnx

from phasejax.models.deepseek_v4.compressor import WindowCompressor
from phasejax.models.deepseek_v4.presets import preset


@pytest.mark.parametrize("tokens", [3, 8, 15])
def test_gates_are_the_weights_of_the_entries(tokens):
    """Slots 0..3 hold lane 0 of the stride before, slots 4..7 lane 1 of the entry's own."""
    config, ratio, channels = preset("deepseek_v4_tiny"), 4, 6
    compressor = WindowCompressor(config, ratio, channels, rngs=nnx.Rngs(0))
    compressor.bias[...] = jax.random.normal(jax.random.key(1), (ratio, 2 * channels))
    hidden = jax.random.normal(jax.random.key(2), (2, tokens, config.width))

    @nnx.jit
    def run(compressor, hidden):
        return compressor(hidden).key, compressor.gates(hidden)["key"], compressor.value(hidden)

    entries, gates, values = map(np.asarray, run(compressor, hidden))
    count = tokens // ratio
    assert entries.shape == (2, count, 1, channels)
    assert gates.shape == (2, count, 2 * ratio, 1, channels)
    np.testing.assert_allclose(gates.sum(axis=2), 1.0, rtol=1e-6)
    for entry in range(count):
        own = slice(entry * ratio, (entry + 1) * ratio)
        expected = (gates[:, entry, ratio:, 0] * values[:, own, channels:]).sum(axis=1)
        if entry:
            before = slice(own.start - ratio, own.start)
            expected += (gates[:, entry, :ratio, 0] * values[:, before, :channels]).sum(axis=1)
        else:
            assert (gates[:, 0, :ratio] == 0).all()
        np.testing.assert_allclose(entries[:, entry, 0], expected, rtol=1e-5, atol=1e-6)
