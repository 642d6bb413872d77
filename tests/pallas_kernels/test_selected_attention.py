# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention over picked entries: every implementation against the contract, that by loops."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.masks import NEVER
from pallas_kernels.selected_attention import pallas_tpu, reference, xla_blocked
from pallas_kernels.selected_attention.api import selected_attention
from pallas_kernels.selected_attention.arg_specs import SPECS
from pallas_kernels.selected_attention.config import blocked_heuristic, tpu_heuristic
from tests.pallas_kernels.compare import (
    assert_close,
    in_float64,
    lower_for_tpu,
    mostly_slow,
    strictly,
)

SHAPE = {
    "batch": 2,
    "tokens": 21,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 4,
    "entries": 7,
    "picks": 3,
}
WINDOW = 5
IMPLEMENTATIONS = {
    "reference": reference.selected_attention,
    "xla_blocked": functools.partial(xla_blocked.selected_attention, block=4),
    "pallas_tpu": functools.partial(pallas_tpu.selected_attention, block=16, interpret=True),
}


def operands(
    *,
    batch,
    tokens,
    heads,
    kv_heads,
    head_dim,
    entries,
    picks,
    shared=False,
    sink=True,
    documents=1,
    before=0,
    missing=0,
    dtype="float32",
    seed=0,
):
    """Random picks without repetition, fewer than P in many rows, none at all in some.

    Of the `before` tokens ahead of the queries the first `missing` do not exist.
    """
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return jnp.asarray(rng.normal(size=shape), dtype)

    def pair(rows):
        return tuple(draw(batch, rows, kv_heads, head_dim) for _ in range(1 if shared else 2))

    order = rng.permuted(np.tile(np.arange(entries), (batch, tokens, 1)), axis=-1)
    width = max(picks - entries, 0)
    order = np.pad(order, ((0, 0), (0, 0), (0, width)), constant_values=-1)[..., :picks]
    real = np.arange(picks) < rng.integers(0, picks + 1, (batch, tokens, 1))
    every = before + tokens
    segment = np.tile(np.arange(every) // -(-every // documents), (batch, 1))
    segment[:, :missing] = NEVER
    return (
        draw(batch, tokens, heads, head_dim),
        pair(every),
        pair(entries),
        jnp.asarray(np.where(real, order, -1), jnp.int32),
        jnp.asarray(segment, jnp.int32),
        draw(heads) if sink else None,
    )


def by_loops(query, near, entry, index, segment, sink, window):
    """One softmax a head and query, in float64."""
    query, near, entry = jax.tree.map(lambda x: np.asarray(x, np.float64), (query, near, entry))
    out = np.zeros(query.shape)
    batch, queries, heads, head_dim = query.shape
    for b, q, n in np.ndindex(batch, queries, heads):
        h = n // (heads // near[0].shape[2])
        t = near[0].shape[1] - queries + q
        local = [s for s in range(max(0, t - window + 1), t + 1) if segment[b, s] == segment[b, t]]
        picked = [e for e in np.asarray(index[b, q]) if e >= 0]
        keys = np.stack([near[0][b, s, h] for s in local] + [entry[0][b, e, h] for e in picked])
        values = np.stack([near[-1][b, s, h] for s in local] + [entry[-1][b, e, h] for e in picked])
        weight = np.exp(keys @ query[b, q, n] / head_dim**0.5)
        extra = 0 if sink is None else np.exp(float(sink[n]))
        out[b, q, n] = weight @ values / (weight.sum() + extra)
    return out


@functools.cache
def compiled(name, window=WINDOW):
    return jax.jit(functools.partial(IMPLEMENTATIONS[name], window=window))


def gradients(function):
    """Of a fixed weighted sum of the outputs, by every real operand."""

    def loss(real, index, segment):
        query, near, entry, sink = real
        out = function(query, near, entry, index, segment, sink).astype(
            jnp.promote_types("float32", query.dtype)
        )
        return jnp.sum(out * jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape))

    return jax.grad(loss)


def real_first(x):
    query, near, entry, index, segment, sink = x
    return (query, near, entry, sink), index, segment


VARIANTS = {
    "plain": {},
    "one array, one head": {"shared": True, "kv_heads": 1},
    "no sink, documents": {"sink": False, "documents": 3},
    "bfloat16": {"dtype": "bfloat16", "shared": True, "kv_heads": 1},
    "after more than a window": {"before": 19, "documents": 2},
    "after less than a window": {"before": 3, "missing": 1},
}


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
class TestSelectedAttention:
    """What every implementation owes."""

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_values(self, name, variant):
        x = operands(**SHAPE | VARIANTS[variant])
        actual = compiled(name)(*x)
        assert actual.dtype == x[0].dtype
        assert_close(actual, by_loops(*x, WINDOW), str(x[0].dtype))

    def test_scores_of_bfloat16_are_float32(self, name):
        """Rounded scores of this size would change weights by a tenth."""
        query, *x = operands(**SHAPE | VARIANTS["bfloat16"])
        assert_close(compiled(name)(16 * query, *x), by_loops(16 * query, *x, WINDOW), "bfloat16")

    def test_no_picks_at_all(self, name):
        *x, index, segment, sink = operands(**SHAPE)
        x = (*x, jnp.full_like(index, -1), segment, sink)
        assert_close(compiled(name)(*x), by_loops(*x, WINDOW))
        grad = jax.jit(gradients(functools.partial(IMPLEMENTATIONS[name], window=WINDOW)))
        for leaf in grad(*real_first(x))[2]:
            assert (leaf == 0).all()

    @pytest.mark.parametrize("window", [1, 64])
    def test_windows_shorter_than_a_tile_and_longer_than_the_sequence(self, name, window):
        x = operands(**SHAPE)
        assert_close(compiled(name, window)(*x), by_loops(*x, window))

    def test_a_token_reaches_only_the_queries_whose_window_holds_it(self, name):
        query, near, entry, index, segment, sink = operands(**SHAPE)
        at = 9
        moved = tuple(x.at[:, at].add(3) for x in near)
        before = compiled(name)(query, near, entry, index, segment, sink)
        after = compiled(name)(query, moved, entry, index, segment, sink)
        changed = (before != after).any((0, 2, 3))
        np.testing.assert_array_equal(np.flatnonzero(changed), np.arange(at, at + WINDOW))


@pytest.mark.parametrize("name", mostly_slow(IMPLEMENTATIONS))
@pytest.mark.parametrize(
    "variant",
    mostly_slow(VARIANTS, fast=["bfloat16", "no sink, documents", "after more than a window"]),
)
def test_gradients(name, variant):
    x = real_first(operands(**SHAPE | VARIANTS[variant]))
    actual = jax.jit(gradients(functools.partial(IMPLEMENTATIONS[name], window=WINDOW)))(*x)
    contract = functools.partial(reference.selected_attention, window=WINDOW)
    expected = in_float64(gradients(contract), *x)
    assert [a.dtype for a in jax.tree.leaves(actual)] == [a.dtype for a in jax.tree.leaves(x[0])]
    assert_close(actual, expected, str(x[0][0].dtype))


@pytest.mark.parametrize("name", mostly_slow(IMPLEMENTATIONS))
def test_vmap_and_remat(name):
    x = operands(**SHAPE)
    call = functools.partial(IMPLEMENTATIONS[name], window=WINDOW)
    stacked = jax.tree.map(lambda v: jnp.stack([v, v]), x)
    mapped = jax.jit(jax.vmap(call))(*stacked)
    assert_close(mapped[1], by_loops(*x, WINDOW))
    plain = jax.jit(gradients(call))(*real_first(x))
    again = jax.jit(gradients(jax.checkpoint(call)))(*real_first(x))
    assert_close(again, plain)


@pytest.mark.parametrize("name", mostly_slow(IMPLEMENTATIONS))
@hypothesis.settings(max_examples=4, deadline=None, derandomize=True)
@hypothesis.given(
    tokens=st.integers(1, 10),
    entries=st.integers(1, 5),
    picks=st.integers(1, 7),
    window=st.integers(1, 6),
    documents=st.integers(1, 3),
)
def test_any_shape(name, tokens, entries, picks, window, documents):
    x = operands(
        batch=1,
        tokens=tokens,
        heads=2,
        kv_heads=1,
        head_dim=2,
        entries=entries,
        picks=picks,
        documents=documents,
    )
    assert_close(compiled(name, window)(*x), by_loops(*x, window))


def test_memory_of_the_blocked_path_is_linear_in_tokens():
    def temporaries(tokens):
        shapes = (
            ((1, tokens, 2, 8), "float32"),
            (((1, tokens, 1, 8), "float32"),),
            (((1, tokens // 4, 1, 8), "float32"),),
            ((1, tokens, 16), "int32"),
            ((1, tokens), "int32"),
            ((2,), "float32"),
        )
        x = jax.tree.map(
            lambda s: jax.ShapeDtypeStruct(*s), shapes, is_leaf=lambda s: isinstance(s[-1], str)
        )
        call = gradients(functools.partial(xla_blocked.selected_attention, window=8, block=128))
        return jax.jit(call).lower(*real_first(x)).compile().memory_analysis().temp_size_in_bytes

    small, large = temporaries(8192), temporaries(32768)
    assert large < 4.2 * small


class TestOnTpu:
    """The kernel on a simulated TPU, and what a real one would compile."""

    @pytest.mark.parametrize("variant", mostly_slow(["plain", "bfloat16"], fast=["bfloat16"]))
    def test_memory_that_was_not_written_is_not_read_and_nothing_races(self, variant):
        x = operands(**SHAPE | {"batch": 1, "tokens": 18} | VARIANTS[variant])
        kernel = functools.partial(pallas_tpu.selected_attention, window=WINDOW, block=16)
        assert_close(strictly(kernel, *x), by_loops(*x, WINDOW), str(x[0].dtype))

    @pytest.mark.parametrize("name", SPECS)
    def test_lowers(self, name):
        operands, options = SPECS[name]
        call = functools.partial(pallas_tpu.selected_attention, **options)
        assert lower_for_tpu(call, *operands).count("tpu_custom_call") == 1

    def test_what_words_cannot_hold_falls_through(self):
        x = operands(**SHAPE | {"head_dim": 3, "dtype": "bfloat16"})
        with pytest.raises(NotImplementedError, match="H=3 is odd"):
            IMPLEMENTATIONS["pallas_tpu"](*x, window=WINDOW)
        x = operands(**SHAPE, dtype="float16")
        with pytest.raises(NotImplementedError, match="dtype=float16"):
            IMPLEMENTATIONS["pallas_tpu"](*x, window=WINDOW)

    @pytest.mark.parametrize(
        ("window", "picks", "message"),
        [
            (131072, 512, "window=131072.*overflow VMEM"),
            (128, 16384, "P=16384"),
            (128, 0, "nothing"),
        ],
    )
    def test_what_its_memory_cannot_hold_falls_through(self, window, picks, message):
        (query, near, entry, _, segment, sink), _ = SPECS["deepseek_v4_flash_8k"]
        index = jax.ShapeDtypeStruct((*query.shape[:2], picks), jnp.int32)
        call = functools.partial(pallas_tpu.selected_attention, window=window)
        with pytest.raises(NotImplementedError, match=message):
            jax.eval_shape(call, query, near, entry, index, segment, sink)

    @pytest.mark.parametrize(("tokens", "picks"), [(1, 1), (131072, 512), (131072, 700)])
    def test_tiles_suit_the_layout(self, tokens, picks):
        block = tpu_heuristic(tokens, picks)
        assert block % 16 == 0
        assert 2 * 4 * block * picks <= 2**17


class TestCall:
    """The public call: defaults, and what it refuses."""

    def test_keys_as_values(self):
        x = operands(**SHAPE, shared=True)
        query, (key,), (entry,), index, _, sink = x
        actual = selected_attention(query, key, None, entry, None, index, window=WINDOW, sink=sink)
        assert_close(actual, by_loops(*x, WINDOW))

    def test_no_entries_yet(self):
        query, (key, value), _, index, segment, _ = x = operands(**SHAPE, sink=False)
        none = jnp.zeros((2, 0, 2, 4))
        actual = selected_attention(
            query, key, value, none, none, jnp.full_like(index, -1), window=WINDOW
        )
        alone = by_loops(query, x[1], x[2], jnp.full_like(index, -1), segment, None, WINDOW)
        assert_close(actual, alone)

    @pytest.mark.parametrize("implementation", ["xla_blocked", "reference"])
    def test_parts_of_a_sequence_equal_the_whole(self, implementation):
        x = operands(**SHAPE, documents=2)
        query, (key, value), (entry_key, entry_value), index, segment, sink = x
        call = functools.partial(
            selected_attention, window=WINDOW, sink=sink, implementation=implementation
        )
        run = jax.jit(lambda q, k, v, i, at, s: call(
            q, k, v, entry_key, entry_value, i, position=at, segment=s
        ))  # fmt: skip
        # Row 0 of the batch from its start, row 1 from the middle, with a window before both.
        starts, length, before = np.array([0, 12]), 9, WINDOW - 1
        rows = starts[:, None] - before + np.arange(before + length)

        def cut(x, rows):
            return jnp.stack([x[b, jnp.asarray(np.maximum(at, 0))] for b, at in enumerate(rows)])

        found = run(
            cut(query, rows[:, before:]),
            cut(key, rows),
            cut(value, rows),
            cut(index, rows[:, before:]),
            jnp.asarray(starts),
            cut(segment, rows),
        )
        whole = by_loops(*x, WINDOW)
        assert_close(found, cut(jnp.asarray(whole), rows[:, before:]))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"position": jnp.zeros(3, int)}, r"position.shape=\(3,\).*\(2,\)"),
            ({"query": jnp.zeros((2, 21, 4))}, r"query.shape=\(2, 21, 4\).*reshape"),
            ({"value": None}, r"given=\(False, True\).*both or none"),
            ({"key": jnp.zeros((2, 20, 2, 4))}, r"key.shape=\(2, 20, 2, 4\).*21 or more"),
            ({"value": jnp.zeros((2, 22, 2, 4))}, r"value.shape=\(2, 22, 2, 4\).*\(2, 21, 2, 4\)"),
            ({"key": jnp.zeros((2, 21, 2, 4), "bfloat16")}, "key.dtype=bfloat16.*float32"),
            ({"entry_key": jnp.zeros((2, 7, 2, 5))}, r"entry_key.shape=\(2, 7, 2, 5\)"),
            ({"index": jnp.full((2, 21, 3), 7)}, r"index=-1 .. 7.*-1 .. 6"),
            ({"index": jnp.zeros((2, 21, 3))}, "index.dtype=float32.*integers"),
            ({"segment": jnp.zeros((2, 21))}, "segment.dtype=float32.*integers"),
            ({"sink": jnp.zeros(4, int)}, "sink.dtype=int32.*astype"),
            ({"entry_key": jnp.zeros((2, 7, 0, 4))}, "key-value heads=0.*4 heads"),
            ({"window": 0}, "window=0.*raise it"),
            ({"sink": jnp.zeros(3)}, r"sink.shape=\(3,\).*\(4,\)"),
            ({"segment": jnp.zeros((2, 20), int)}, r"segment.shape=\(2, 20\)"),
        ],
    )
    def test_a_mistake_is_named(self, change, message):
        query, near, entry, index, segment, sink = operands(**SHAPE)
        call = {"query": query, "index": index, "window": WINDOW, "segment": segment, "sink": sink}
        call |= dict(zip(("key", "value", "entry_key", "entry_value"), near + entry, strict=True))
        with pytest.raises(ValueError, match=message):
            selected_attention(**call | change)


@pytest.mark.parametrize(
    ("query", "window", "picks"), [((1, 131072, 64, 512), 128, 512), ((8, 1, 4, 64), 16, 4)]
)
def test_tiles_fit_the_budget(query, window, picks):
    block = blocked_heuristic(query, 1, window, picks)
    assert 1 <= block <= query[1]
    assert block * query[0] * picks * query[3] <= 2**22
