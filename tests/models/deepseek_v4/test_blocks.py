# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""A few queries at a time give what all of them at once give, gradients included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasejax.models.deepseek_v4 import blocks
from phasejax.models.deepseek_v4.attention import Shared
from tests.golden import filled
from tests.models.deepseek_v4.streams import CONFIG, V41, WIDTH


def rows_of_each_call(monkeypatch, budget):
    """A smaller budget from now on; the list of how many rows each block takes."""
    seen, original = [], blocks.by_rows

    def by_rows(function, rows, *arrays):
        seen.append((rows, arrays[0].shape[1]))
        return original(function, rows, *arrays)

    monkeypatch.setattr(blocks, "BUDGET", budget)
    for module in ("core", "indexer"):
        monkeypatch.setattr(f"phasejax.models.deepseek_v4.{module}.by_rows", by_rows)
    return seen


@pytest.mark.parametrize("rows", [1, 4, 5, 13, 20])
def test_blocks_know_their_first_row(rows):
    x = jnp.arange(26.0).reshape(2, 13)
    got = blocks.by_rows(lambda first, x: (x, first + jnp.zeros_like(x)), rows, x)
    np.testing.assert_array_equal(got[0], x)
    np.testing.assert_array_equal(got[1][0], np.arange(13) // min(rows, 13) * min(rows, 13))


def test_a_block_has_a_row_however_small_the_budget(monkeypatch):
    monkeypatch.setattr(blocks, "BUDGET", 100)
    assert [blocks.rows_within_budget(n) for n in (0, 30, 100, 101)] == [100, 3, 1, 1]


def outputs(config, x):
    """Of all attention layers, which hand on entries and selections."""
    shared, found, position = Shared(), [], jnp.arange(x.shape[1])[None]
    for block in filled.model(config).blocks:
        output, shared, _ = block.attention(x, position, shared)
        found.append(output)
    return jnp.stack(found)


def assert_same_in_blocks(monkeypatch, run, x, budget):
    """Within the budget, where every block is smaller than the whole, `run` gives the same."""
    wanted = jax.jit(run)(x)
    seen = rows_of_each_call(monkeypatch, budget)
    got = jax.jit(lambda x: run(x))(x)  # another function, so that it is traced again
    assert seen and all(rows < total for rows, total in seen)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert np.abs(one - other).max() <= 1e-5 * np.abs(other).max()


def hidden(*shape):
    return np.random.default_rng(0).normal(size=(*shape, CONFIG.width)).astype(np.float32)


@pytest.mark.parametrize(("config", "tokens"), [(CONFIG, 133), (V41, 29)], ids=["v4", "v41"])
def test_whole_sequences(monkeypatch, config, tokens):
    """Selected entries, every visible one, both levels of V4.1's search; no multiple of a block."""
    assert_same_in_blocks(monkeypatch, lambda x: outputs(config, x), hidden(2, tokens), 1000)


def test_gradients(monkeypatch):
    layer = filled.model(CONFIG).blocks[0].attention

    def loss(x):
        output, _, _ = layer(x, jnp.arange(x.shape[1])[None], Shared())
        return jnp.vdot(output, jnp.cos(jnp.arange(output.size).reshape(output.shape)))

    assert_same_in_blocks(monkeypatch, jax.value_and_grad(loss), hidden(1, 29), 400)


def test_steps_of_streams(monkeypatch):
    """Positions do not start at 0, and differ from row to row."""
    layer = filled.model(CONFIG).blocks[0].attention
    first = jnp.asarray([WIDTH, 7])

    def run(x):
        state, length, found = layer.init_state(2, 40, 0), jnp.zeros(2, jnp.int32), []
        for chunk, count in zip(x, (first, jnp.full(2, WIDTH)), strict=True):
            position = length[:, None] + jnp.arange(WIDTH)
            output, _, state = layer(chunk, position, Shared(), state, count)
            real = jnp.arange(WIDTH) < count[:, None]
            found.append(jnp.where(real[..., None], output, 0))
            length = length + count
        return jnp.stack(found)

    assert_same_in_blocks(monkeypatch, run, hidden(2, 2, WIDTH), 400)
