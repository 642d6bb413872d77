# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""A few queries at a time give what all of them at once give, gradients included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pallas_kernels.compressed_attention import xla_blocked as compressed_attention
from pallas_kernels.compressed_attention.config import Blocks as AttentionBlocks
from pallas_kernels.index_topk import xla_blocked as index_topk
from pallas_kernels.index_topk.config import Blocks as IndexBlocks
from pallas_kernels.selected_attention import xla_blocked as selected_attention
from phasejax.models.deepseek_v4 import blocks
from phasejax.models.deepseek_v4.attention import Shared
from phasejax.models.deepseek_v4.decoder import DeepseekV4
from tests.golden import filled
from tests.models.deepseek_v4.streams import CONFIG, V41, WIDTH


class Small:
    """From now on blocks and the kernels' tiles are smaller than any whole; who asked for one."""

    def __init__(self, monkeypatch):
        self.seen = set()
        monkeypatch.setattr(blocks, "BUDGET", 400)
        original = blocks.by_rows

        def by_rows(function, rows, *arrays):
            assert rows < arrays[0].shape[1]
            self.seen.add("by_rows")
            return original(function, rows, *arrays)

        monkeypatch.setattr("phasejax.models.deepseek_v4.indexer.by_rows", by_rows)
        monkeypatch.setattr(compressed_attention, "ONE_PIECE", 0)
        for op, sizes in (
            (
                compressed_attention,
                lambda query, tokens, entries, _: AttentionBlocks(5, 7, min(max(entries, 1), 3)),
            ),
            (selected_attention, lambda *_: 5),
            (index_topk, lambda *_: IndexBlocks(5, 3, 5)),
        ):
            monkeypatch.setattr(op, "blocked_heuristic", self._noting(op, sizes))

    def _noting(self, op, sizes):
        def noted(*shapes):
            self.seen.add(op.__name__.split(".")[1])
            return sizes(*shapes)

        return noted


@pytest.mark.parametrize("rows", [1, 4, 5, 13, 20])
def test_blocks_are_joined_in_order(rows):
    x = jnp.arange(26.0).reshape(2, 13)
    got = blocks.by_rows(lambda x: (x, -x), rows, x)
    np.testing.assert_array_equal(got[0], x)
    np.testing.assert_array_equal(got[1], -x)


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


def assert_same_in_blocks(monkeypatch, run, x, seen):
    """In blocks smaller than any whole `run` gives the same; `seen` are those that work so."""
    wanted = jax.jit(run)(x)
    small = Small(monkeypatch)
    got = jax.jit(lambda x: run(x))(x)  # another function, so that it is traced again
    assert small.seen == seen
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert np.abs(one - other).max() <= 1e-5 * np.abs(other).max()


def hidden(*shape):
    return np.random.default_rng(0).normal(size=(*shape, CONFIG.width)).astype(np.float32)


@pytest.mark.parametrize(
    ("config", "tokens", "seen"),
    [
        (CONFIG, 133, {"compressed_attention", "selected_attention", "index_topk"}),
        (V41, 29, {"selected_attention", "index_topk", "by_rows"}),
    ],
    ids=["v4", "v41"],
)
def test_whole_sequences(monkeypatch, config, tokens, seen):
    """Selected entries, every visible one, both levels of V4.1's search; no multiple of a block."""
    assert_same_in_blocks(monkeypatch, lambda x: outputs(config, x), hidden(2, tokens), seen)


def test_memory_is_linear_in_tokens():
    """Of whole sequences; nothing is run."""
    graph, params = nnx.split(nnx.eval_shape(lambda: DeepseekV4(CONFIG, rngs=nnx.Rngs(0))))

    def temporary(tokens):
        call = jax.jit(lambda p, x: nnx.merge(graph, p)(x)[:, -1])
        lowered = call.lower(params, jax.ShapeDtypeStruct((1, tokens), jnp.int32))
        return lowered.compile().memory_analysis().temp_size_in_bytes

    small, large = temporary(16384), temporary(32768)
    assert large < 2.2 * small
    assert large < 32768 * (32768 // 4)  # a byte for every query and entry


def test_gradients(monkeypatch):
    layer = filled.model(CONFIG).blocks[0].attention

    def loss(x):
        output, _, _ = layer(x, jnp.arange(x.shape[1])[None], Shared())
        return jnp.vdot(output, jnp.cos(jnp.arange(output.size).reshape(output.shape)))

    seen = {"selected_attention", "index_topk"}
    assert_same_in_blocks(monkeypatch, jax.value_and_grad(loss), hidden(1, 29), seen)


@pytest.mark.parametrize(
    ("layer", "seen"),
    [(0, {"selected_attention", "index_topk"}), (1, {"compressed_attention"})],
)
def test_steps_of_streams(monkeypatch, layer, seen):
    """Positions do not start at 0, and differ from row to row."""
    layer = filled.model(CONFIG).blocks[layer].attention
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

    assert_same_in_blocks(monkeypatch, run, hidden(2, 2, WIDTH), seen)
