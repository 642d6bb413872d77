# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The lightning indexer: every implementation against the contract, and the contract by loops."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import tiles
from pallas_kernels.index_topk import pallas_tpu, reference, xla_blocked
from pallas_kernels.index_topk.api import index_topk
from pallas_kernels.index_topk.arg_specs import SPECS
from pallas_kernels.index_topk.config import Blocks, blocked_heuristic, tpu_sorted
from pallas_kernels.masks import entry_mask
from tests.pallas_kernels.compare import (
    assert_close,
    in_float64,
    lower_for_tpu,
    mostly_slow,
    strictly,
)

STRIDE = 3
SHAPE = {"batch": 2, "queries": 37, "heads": 3, "head_dim": 4}
IMPLEMENTATIONS = {
    "reference": reference.index_topk,
    "xla_blocked": functools.partial(xla_blocked.index_topk, blocks=Blocks(8, 4, 16)),
    "pallas_tpu": functools.partial(pallas_tpu.index_topk, interpret=True),
}


def operands(
    *,
    batch,
    queries,
    heads,
    head_dim,
    entries=None,
    documents=1,
    whole=False,
    seed=0,
    dtype="float32",
):
    """Queries at every position, an entry every STRIDE tokens, documents of equal length.

    With `whole` numbers every sum is exact in any order, and ties are many.
    """
    rng = np.random.default_rng(seed)
    entries = queries // STRIDE if entries is None else entries

    def draw(*shape):
        x = rng.integers(-2, 3, shape) if whole else rng.normal(size=shape)
        return jnp.asarray(x, dtype)

    position = np.broadcast_to(np.arange(queries), (batch, queries))
    end = np.broadcast_to(STRIDE * np.arange(entries) + STRIDE - 1, (batch, entries))
    length = max(-(-queries // documents), 1)
    return {
        "query": draw(batch, queries, heads, head_dim),
        "weight": draw(batch, queries, heads),
        "key": draw(batch, entries, head_dim),
        "position": jnp.asarray(position, jnp.int32),
        "end": jnp.asarray(end, jnp.int32),
        "segment": jnp.asarray(position // length, jnp.int32),
        "entry_segment": jnp.asarray(end // length, jnp.int32),
    }


def by_loops(x, picks):
    """The formula, one query at a time, in float64."""
    x = {name: np.asarray(value, np.float64) for name, value in x.items()}
    batch, queries, _, _ = x["query"].shape
    index = np.full((batch, queries, picks), -1)
    score = np.full((batch, queries, picks), -np.inf)
    for b in range(batch):
        for q in range(queries):
            seen = [
                e
                for e in range(x["key"].shape[1])
                if x["end"][b, e] <= x["position"][b, q]
                and x["entry_segment"][b, e] == x["segment"][b, q]
            ]
            value = {
                e: sum(
                    w * max(0, float(h @ x["key"][b, e]))
                    for w, h in zip(x["weight"][b, q], x["query"][b, q], strict=True)
                )
                for e in seen
            }
            for i, e in enumerate(sorted(seen, key=lambda e: (-value[e], e))[:picks]):
                index[b, q, i], score[b, q, i] = e, value[e]
    return index, score


@functools.cache
def compiled(name):
    return jax.jit(IMPLEMENTATIONS[name], static_argnames=("picks",))


def gradients(function, picks=5):
    """Of a fixed weighted sum of the scores, by query, weight and key."""

    def loss(real, rest):
        score = function(**real, **rest, picks=picks).score
        factor = jnp.cos(jnp.arange(score.size, dtype=score.dtype)).reshape(score.shape)
        return jnp.sum(jnp.where(jnp.isfinite(score), score * factor, 0))

    def grad(x):
        real = {name: x[name] for name in ("query", "weight", "key")}
        return jax.grad(loss)(real, {name: x[name] for name in x.keys() - real.keys()})

    return grad


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
class TestIndexTopk:
    """What every implementation owes."""

    @pytest.mark.parametrize("documents", [1, 3])
    @pytest.mark.parametrize("picks", [1, 5, 20])
    def test_scores_and_ties_are_those_of_the_formula(self, name, picks, documents):
        x = operands(**SHAPE, documents=documents, whole=True)
        index, score = by_loops(x, picks)
        actual = compiled(name)(**x, picks=picks)
        np.testing.assert_array_equal(actual.index, index)
        np.testing.assert_array_equal(actual.score, score)
        assert actual.index.dtype == jnp.int32

    def test_documents_of_every_row(self, name):
        """Rows of a batch start to see entries at different tiles."""
        x = operands(**SHAPE, whole=True)
        apart = operands(**SHAPE, documents=3, whole=True)
        for part in ("segment", "entry_segment"):
            x[part] = x[part].at[1].set(apart[part][1])
        actual = compiled(name)(**x, picks=5)
        np.testing.assert_array_equal(actual.index, by_loops(x, 5)[0])

    def test_zeros_of_either_sign_are_a_tie(self, name):
        """One channel and one head: no sum turns the signs of the products into one."""
        keys = jnp.asarray([-1, 0.0, -0.0, -2, 0.0, -0.0, -1, 0.0])
        x = operands(batch=1, queries=24, heads=1, head_dim=1, whole=True)
        x["key"], x["query"] = keys[None, :, None], jnp.ones_like(x["query"])
        for weight in (-1.0, 1.0):
            x["weight"] = jnp.full_like(x["weight"], weight)
            actual = compiled(name)(**x, picks=5)
            np.testing.assert_array_equal(actual.index, by_loops(x, 5)[0])

    def test_rounding_of_float32(self, name):
        x = operands(**SHAPE, seed=1)
        assert_close(compiled(name)(**x, picks=5).score, by_loops(x, 5)[1])

    def test_bfloat16_accumulates_in_float32(self, name):
        x = operands(**SHAPE, dtype="bfloat16", seed=2)
        score = compiled(name)(**x, picks=5).score
        assert score.dtype == jnp.float32
        assert_close(score, by_loops(x, 5)[1])

    def test_no_query_sees_an_entry(self, name):
        x = operands(**SHAPE)
        x["position"] = jnp.full_like(x["position"], STRIDE - 2)
        actual = compiled(name)(**x, picks=5)
        assert (actual.index == -1).all()
        assert (actual.score == -jnp.inf).all()

        def total(real, x):  # not even a loss that counts what is missing pulls at anything
            return IMPLEMENTATIONS[name](**x | real, picks=5).score.sum()

        real = {part: x[part] for part in ("query", "weight", "key")}
        for grad in jax.jit(jax.grad(total))(real, x).values():
            assert (grad == 0).all()

    def test_the_future_takes_no_place(self, name):
        """The last token of a window sees its entry, the one before does not."""
        x = operands(**SHAPE, whole=True)
        before = compiled(name)(**x, picks=5)
        entry = 4
        x["key"] = x["key"].at[:, entry].add(50)
        after = compiled(name)(**x, picks=5)
        for old, new in zip(before, after, strict=True):
            until = STRIDE * (entry + 1) - 1
            np.testing.assert_array_equal(old[:, :until], new[:, :until])
            assert (old[:, until] != new[:, until]).any()

    def test_unused_entries_with_an_end_beyond_every_token_are_never_picked(self, name):
        x = operands(**SHAPE, whole=True)
        x["end"] = x["end"].at[1, 3:].set(jnp.iinfo(jnp.int32).max)
        actual = compiled(name)(**x, picks=5)
        assert actual.index[1].max() == 2
        np.testing.assert_array_equal(actual.index, by_loops(x, 5)[0])

    def test_rows_of_a_batch_do_not_meet(self, name):
        x = operands(**SHAPE, whole=True)
        both = compiled(name)(**x, picks=5)
        for b in range(2):
            alone = compiled(name)(**{k: v[b : b + 1] for k, v in x.items()}, picks=5)
            np.testing.assert_array_equal(alone.index[0], both.index[b])


@pytest.mark.parametrize("name", mostly_slow(IMPLEMENTATIONS))
@pytest.mark.parametrize(("dtype", "documents"), [("float32", 3), ("bfloat16", 1)])
def test_gradients_of_the_scores(name, dtype, documents):
    x = operands(**SHAPE, documents=documents, dtype=dtype, seed=3)
    actual = jax.jit(gradients(IMPLEMENTATIONS[name]))(x)
    assert all(grad.dtype == x[part].dtype for part, grad in actual.items())
    assert_close(actual, in_float64(gradients(reference.index_topk), x), dtype)


@pytest.mark.parametrize("name", mostly_slow(IMPLEMENTATIONS))
def test_vmap_and_remat(name):
    x = operands(**SHAPE, whole=True)
    call = functools.partial(IMPLEMENTATIONS[name], picks=5)
    stacked = {k: jnp.stack([v, v[::-1]]) for k, v in x.items()}
    actual = jax.jit(jax.vmap(lambda x: call(**x)))(stacked)
    np.testing.assert_array_equal(actual.index[0], by_loops(x, 5)[0])
    np.testing.assert_array_equal(actual.index[1], by_loops(x, 5)[0][::-1])

    def remat(picks, **x):
        return jax.checkpoint(functools.partial(IMPLEMENTATIONS[name], picks=picks))(**x)

    plain, again = (jax.jit(gradients(f))(x) for f in (IMPLEMENTATIONS[name], remat))
    assert_close(again, plain)


@pytest.mark.parametrize("name", mostly_slow(IMPLEMENTATIONS))
@hypothesis.settings(max_examples=5, deadline=None, derandomize=True)
@hypothesis.given(
    queries=st.integers(1, 20),
    entries=st.integers(1, 11),
    picks=st.integers(1, 12),
    documents=st.integers(1, 3),
)
def test_any_shape(name, queries, entries, picks, documents):
    x = operands(
        batch=1,
        queries=queries,
        heads=2,
        head_dim=2,
        entries=entries,
        documents=documents,
        whole=True,
    )
    index, score = by_loops(x, picks)
    actual = compiled(name)(**x, picks=picks)
    np.testing.assert_array_equal(actual.index, index)
    np.testing.assert_array_equal(actual.score, score)


def test_blocked_merges_zeros_of_either_sign_in_the_order_of_the_index(monkeypatch):
    zeros = lambda q, w, k: jnp.where(jnp.arange(k.shape[-2]) % 2, 0.0, -0.0) * w[..., :1]  # noqa: E731
    monkeypatch.setattr(xla_blocked, "index_scores", zeros)
    x = operands(**SHAPE, whole=True)
    x["weight"] = jnp.ones_like(x["weight"])
    index = jax.jit(functools.partial(IMPLEMENTATIONS["xla_blocked"], picks=3))(**x).index
    np.testing.assert_array_equal(index[:, -1], [[0, 1, 2]] * 2)


def test_blocked_reads_only_tiles_that_may_be_seen():
    x = operands(**SHAPE, documents=3)
    blocks = Blocks(query=4, entry=2, gradient=4)
    first, stop = xla_blocked.tile_bounds(
        tiles.padded(x["position"], 4, -1),
        tiles.padded(x["end"], 2, 10**6),
        tiles.padded(x["segment"], 4),
        tiles.padded(x["entry_segment"], 2),
        blocks,
    )
    seen = np.asarray(entry_mask(x["position"], x["segment"], x["end"], x["entry_segment"]))
    for c in range(first.shape[1]):
        used = np.flatnonzero(seen[0, 4 * c : 4 * c + 4].any(0)) // 2
        assert first[0, c] <= used.min(initial=10**6)
        assert stop[0, c] >= used.max(initial=-1) + 1
    assert int((stop - first).sum()) < 0.5 * seen.shape[0] * (-(-seen.shape[1] // 4)) * 6


def test_memory_of_the_blocked_path_is_linear_in_tokens():
    def temporaries(queries):
        shapes = {
            "query": ((1, queries, 2, 8), "float32"),
            "weight": ((1, queries, 2), "float32"),
            "key": ((1, queries // 4, 8), "float32"),
            "position": ((1, queries), "int32"),
            "end": ((1, queries // 4), "int32"),
            "segment": ((1, queries), "int32"),
            "entry_segment": ((1, queries // 4), "int32"),
        }
        x = {k: jax.ShapeDtypeStruct(*v) for k, v in shapes.items()}
        call = functools.partial(xla_blocked.index_topk, picks=16)

        def total(x):
            grad = jax.grad(
                lambda q: jnp.where((s := call(**(x | {"query": q})).score) > -1e9, s, 0).sum()
            )
            return grad(x["query"])

        return jax.jit(total).lower(x).compile().memory_analysis().temp_size_in_bytes

    small, large = temporaries(8192), temporaries(32768)
    assert large < 4.5 * small
    assert large < 32768 * 8192 * 4 / 8  # an eighth of the T x T/S scores of one head


class TestOnTpu:
    """The kernel on a simulated TPU, and what a real one would compile."""

    def test_memory_that_was_not_written_is_not_read_and_nothing_races(self):
        sizes = {"batch": 1, "queries": 140, "heads": 2, "head_dim": 2, "entries": 150}
        x = operands(**sizes, documents=3, whole=True)

        def kernel(x, interpret):
            return pallas_tpu.index_topk(**x, picks=20, interpret=interpret)

        expected = compiled("reference")(**x, picks=20)
        # The second tile of queries begins with some that see fewer.
        assert (expected.index[:, 128] == -1).any() and (expected.index > 0).any()
        jax.tree.map(np.testing.assert_array_equal, strictly(kernel, x), expected)

    def test_merges_many_tiles_in_documents(self):
        x = operands(**SHAPE | {"queries": 900, "batch": 1}, documents=2, whole=True)
        actual, expected = (compiled(name)(**x, picks=130) for name in ("pallas_tpu", "reference"))
        jax.tree.map(np.testing.assert_array_equal, actual, expected)

    @pytest.mark.parametrize("name", SPECS)
    def test_lowers(self, name):
        operands, options = SPECS[name]
        call = functools.partial(pallas_tpu.index_topk, **options)
        assert lower_for_tpu(call, *operands).count("tpu_custom_call") == 1

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"picks": 4096}, "picks=4096.*overflow VMEM"),
            ({"queries": 0}, "nothing to do"),
            ({"dtype": "float16"}, "dtype=float16"),
        ],
    )
    def test_says_what_it_cannot_do(self, change, message):
        call = functools.partial(pallas_tpu.index_topk, picks=change.pop("picks", 5))
        x = operands(**SHAPE | {"entries": 12} | change)
        with pytest.raises(NotImplementedError, match=message):
            call(**x)

    @pytest.mark.parametrize(("picks", "length"), [(1, 128), (128, 128), (129, 256), (512, 512)])
    def test_lists_are_powers_of_two(self, picks, length):
        assert tpu_sorted(picks) == length


class TestCall:
    """The public call: defaults, and what it refuses."""

    def test_defaults(self):
        x = operands(**SHAPE, whole=True)
        expected = compiled("reference")(**x, picks=5)
        actual = index_topk(x["query"], x["weight"], x["key"], x["end"][0], picks=5)
        jax.tree.map(np.testing.assert_array_equal, actual, expected)

    def test_slots_that_are_not_valid(self):
        x = operands(**SHAPE, whole=True)
        valid = jnp.arange(x["key"].shape[1]) < 3
        # What stands in such a slot is nobody's concern.
        end = jnp.where(valid, x["end"], -1)
        actual = index_topk(x["query"], x["weight"], x["key"], end, picks=5, valid=valid)
        assert actual.index.max() == 2

    def test_shorter_than_a_window(self):
        x = operands(**SHAPE | {"queries": 2})
        actual = index_topk(x["query"], x["weight"], x["key"], x["end"], picks=5)
        assert actual.index.shape == (2, 2, 5)
        assert (actual.index == -1).all()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"query": jnp.zeros((2, 37, 4))}, r"query.shape=\(2, 37, 4\).*reshape"),
            ({"key": jnp.zeros((2, 12, 4), int)}, "key.dtype=int32.*astype"),
            ({"weight": jnp.zeros((2, 37, 4))}, r"weight.shape=\(2, 37, 4\).*\(2, 37, 3\)"),
            ({"key": jnp.zeros((2, 12, 5))}, r"key.shape=\(2, 12, 5\).*\(2, E, 4\)"),
            ({"picks": 0}, "picks=0.*raise it"),
            ({"end": jnp.zeros(11, int)}, r"end.shape=\(11,\).*\(2, 12\)"),
            ({"end": jnp.full(12, -1)}, "end=-1.*valid"),
            ({"end": jnp.zeros(12)}, "end.dtype=float32.*integers"),
            ({"position": jnp.zeros(37)}, "position.dtype=float32.*integers"),
            ({"segment": jnp.zeros((2, 37), int)}, r"entry_segment\) given=\(True, False\).*both"),
        ],
    )
    def test_a_mistake_is_named(self, change, message):
        x = operands(**SHAPE)
        call = {name: x[name] for name in ("query", "weight", "key", "end")} | {"picks": 5}
        with pytest.raises(ValueError, match=message):
            index_topk(**call | change)


@pytest.mark.parametrize(
    ("query", "entries", "picks"),
    [((1, 1, 64, 128), 1, 512), ((1, 131072, 64, 128), 32768, 512), ((8, 4096, 4, 64), 1024, 16)],
)
def test_blocks_fit_the_budget(query, entries, picks):
    blocks = blocked_heuristic(query, entries, picks)
    batch, queries, heads, _ = query
    assert 1 <= blocks.query <= queries
    assert 1 <= blocks.entry <= entries
    assert batch * blocks.query * heads * blocks.entry <= 2**22
