# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention over tokens and entries: every implementation against loops, all in float64."""

import dataclasses
import functools
from unittest import mock

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import dispatch
from pallas_kernels.compressed_attention import (
    api,
    one_piece,
    pallas_tpu,
    plan,
    reference,
    xla_blocked,
)
from pallas_kernels.compressed_attention.arg_specs import SPECS
from pallas_kernels.compressed_attention.config import (
    Blocks,
    TpuBlocks,
    blocked_heuristic,
    tpu_heuristic,
)
from pallas_kernels.compressed_attention.masks import reads
from tests.pallas_kernels.compare import (
    assert_close,
    in_float64,
    lower_for_tpu,
    mostly_slow,
    strictly,
)


@dataclasses.dataclass(frozen=True)
class Case:
    """Operands of a call, drawn from a seed; the last two entries are padding."""

    tokens: int = 21
    heads: int = 2
    kv_heads: int = 1
    window: int | None = 8
    tail_only: bool = False
    sink: bool = False
    chunk: tuple[int, int] = (8, 4)  # W, S
    shared: bool = False
    documents: int = 1
    dynamic: bool = False
    positions: tuple[int, ...] | None = None
    dtype: str = "float32"
    batch: int = 2
    head_dim: int = 4

    def operands(self):
        """Real operands by name, and what the rest of the call is."""
        rng = np.random.default_rng(self.tokens + self.heads)
        width, stride = self.chunk
        ends = np.arange(width - 1, self.tokens, stride)
        if self.dynamic:  # chunks of any length, different in each row
            rows = [np.sort(rng.choice(self.tokens, 6, replace=False)) for _ in range(self.batch)]
            ends = np.stack(rows)
        real = ends.shape[-1]
        pad = [(0, 0)] * (ends.ndim - 1) + [(0, 2)]
        # A padded slot looks complete from the first token on, and must not be read.
        call = {
            "end": np.pad(ends, pad).astype(np.int32),
            "valid": np.pad(np.ones(ends.shape, bool), pad),
        }
        positions = range(self.tokens) if self.positions is None else self.positions
        if self.positions is not None:
            call["query_position"] = np.array(positions, np.int32)
        if self.documents > 1:
            cuts = np.sort(rng.integers(1, self.tokens, (self.batch, self.documents - 1)))
            call["segment"] = (np.arange(self.tokens) >= cuts[..., None]).sum(1).astype(np.int32)
        draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
        rows = (self.kv_heads, self.head_dim)
        arrays = {
            "query": draw(self.batch, len(positions), self.heads, self.head_dim),
            "key": draw(self.batch, self.tokens, *rows),
            "entry_key": draw(self.batch, real + 2, *rows),
        }
        if not self.shared:
            arrays |= {"value": draw(*arrays["key"].shape)}
            arrays |= {"entry_value": draw(*arrays["entry_key"].shape)}
        if self.sink:
            arrays["sink"] = draw(self.heads)
        return {k: jnp.asarray(v, self.dtype) for k, v in arrays.items()}, call

    def by_loops(self) -> np.ndarray:
        """One query and one head at a time; masks from the words of the definition."""
        arrays, call = self.operands()
        arrays = {k: np.asarray(v, np.float64) for k, v in arrays.items()}
        positions = call.get("query_position", range(self.tokens))
        segment = call.get("segment", np.zeros((self.batch, self.tokens), int))
        out = np.zeros(arrays["query"].shape)
        for b, q, n in np.ndindex(out.shape[:3]):
            p, k = positions[q], n // (self.heads // self.kv_heads)
            if p < 0:
                continue
            end, valid = (np.broadcast_to(call[x], (self.batch, *call[x].shape[-1:]))[b]
                          for x in ("end", "valid"))  # fmt: skip
            same = [segment[b, t] == segment[b, p] for t in range(self.tokens)]
            visible = [e for e in range(len(end)) if valid[e] and end[e] <= p and same[end[e]]]
            near = [t for t in range(p + 1) if same[t]]
            if self.window is not None:
                near = [t for t in near if p - t < self.window]
            if self.tail_only:
                near = [t for t in near if t > max((end[e] for e in visible), default=-1)]
            names = ("key", "entry_key") if self.shared else ("value", "entry_value")
            keys, values = (
                np.concatenate([arrays[x][b, near, k], arrays[e][b, visible, k]])
                for x, e in (("key", "entry_key"), names)
            )
            weight = np.exp(keys @ arrays["query"][b, q, n] / self.head_dim**0.5)
            total = weight.sum() + (np.exp(arrays["sink"][n]) if self.sink else 0)
            out[b, q, n] = weight @ values / (total if total else 1)
        return out

    def attend(self, implementation):
        """The public call as a function of the real operands, with one implementation in place."""
        _, call = self.operands()

        def run(arrays):
            with mock.patch.object(dispatch, "load", lambda op, name: implementation):
                return api.compressed_attention(
                    **{"value": None, "entry_value": None} | arrays,
                    window=self.window,
                    tail_only=self.tail_only,
                    implementation="reference",
                    **{k: jnp.asarray(v) for k, v in call.items()},
                )

        return run

    def values_and_gradients(self, implementation):
        """A function that gives the gradient of a fixed weighing of the output, and the output."""
        attend = self.attend(implementation)

        def loss(arrays):
            out = attend(arrays)
            wide = out.astype(jnp.promote_types("float32", out.dtype))
            return jnp.sum(wide * jnp.cos(jnp.arange(out.size)).reshape(out.shape)), out

        return jax.grad(loss, has_aux=True)


IMPLEMENTATIONS = {
    "reference": reference.compressed_attention,
    "one_piece": one_piece.compressed_attention,
    "xla_blocked": xla_blocked.compressed_attention,
    "pallas_tpu": pallas_tpu.compressed_attention,
}
CASES = {
    "window": Case(),
    "window and sink": Case(sink=True, chunk=(8, 8)),
    "tail": Case(tail_only=True),
    "tail, sink, groups": Case(tokens=19, heads=4, kv_heads=2, tail_only=True, sink=True),
    "groups": Case(tokens=24, heads=6, kv_heads=2, window=5, chunk=(4, 3)),
    "one array": Case(heads=4, shared=True, sink=True),
    "shorter than W": Case(tokens=5, sink=True),
    "one token": Case(tokens=1, window=8),
    "span of one": Case(tokens=9, window=1, chunk=(2, 2)),
    "the whole past": Case(tokens=13, window=None, sink=True, chunk=(4, 4)),
    "the whole past, tail": Case(tokens=13, window=None, tail_only=True, chunk=(4, 2)),
    "documents": Case(tokens=23, documents=3, sink=True),
    "documents, tail, dynamic": Case(tokens=23, documents=3, tail_only=True, dynamic=True),
    "some positions": Case(heads=3, positions=(3, 18, -1, 7, 7), sink=True),
    "nothing to read": Case(positions=(-1, -3, 5)),
    # Many tiles of tokens, few of entries, and a last tile of queries that is mostly filling.
    "bfloat16": Case(41, 4, 2, window=3, chunk=(16, 16), dtype="bfloat16"),
}
SLOW = {"span of one", "groups", "the whole past", "shorter than W", "nothing to read"}
# What a simulated TPU is tried on in every run; it compiles for seconds.
FAST_ON_TPU = {"tail, sink, groups", "documents, tail, dynamic", "some positions", "bfloat16"}


def cases():
    for name in IMPLEMENTATIONS:
        for title, case in CASES.items():
            is_slow = title not in FAST_ON_TPU if name == "pallas_tpu" else title in SLOW
            marks = [pytest.mark.slow] if is_slow else []
            yield pytest.param(name, case, id=f"{name}-{title}", marks=marks)


@functools.cache
def expected(case: Case):
    """Gradient by every operand, in float64, of the contract."""
    arrays, _ = case.operands()
    return in_float64(case.values_and_gradients(reference.compressed_attention), arrays)[0]


def small(case: Case, name: str, interpret=True):
    """An implementation with tiles that are no longer than the axes."""
    if name == "pallas_tpu":
        together = 2 if case.heads // case.kv_heads % 2 == 0 else 1
        return functools.partial(
            IMPLEMENTATIONS[name], blocks=TpuBlocks(4, together, 5, 2, 2), interpret=interpret
        )
    if name != "xla_blocked":
        return IMPLEMENTATIONS[name]
    queries = case.tokens if case.positions is None else len(case.positions)
    blocks = Blocks(min(4, queries), min(5, case.tokens), 2)
    return functools.partial(IMPLEMENTATIONS[name], blocks=blocks)


@functools.cache
def compiled(name: str, case: Case):
    return jax.jit(case.values_and_gradients(small(case, name)))


@pytest.mark.parametrize(("name", "case"), list(cases()))
def test_values_and_gradients(name, case):
    arrays, _ = case.operands()
    gradient, out = compiled(name, case)(arrays)
    assert out.dtype == case.dtype
    assert_close(out, case.by_loops(), case.dtype)
    assert {k: x.dtype for k, x in gradient.items()} == {k: x.dtype for k, x in arrays.items()}
    wanted = expected(case)
    found = {operand: gradient[operand] for operand in wanted}
    assert_close(found, wanted, case.dtype, err_msg=f"of {sorted(wanted)}")


SEVERAL = mostly_slow(IMPLEMENTATIONS, fast=("reference", "one_piece", "xla_blocked"))


@pytest.mark.parametrize("name", SEVERAL)
class TestCompressedAttention:
    """What every implementation owes."""

    def test_padded_slots_and_other_documents_are_not_read(self, name):
        case = CASES["documents"]
        arrays, call = case.operands()
        gradient, _ = compiled(name, case)(arrays)
        real = call["valid"]
        assert np.all(np.asarray(gradient["entry_key"])[:, ~real] == 0)
        assert np.all(np.asarray(gradient["entry_value"])[:, ~real] == 0)
        assert np.any(np.asarray(gradient["entry_value"])[:, real] != 0)

    @pytest.mark.parametrize("large", ["query", "sink"])
    def test_large_scores_do_not_overflow(self, name, large):
        case = CASES["window and sink"]
        arrays, _ = case.operands()
        arrays[large] = jnp.abs(arrays[large]) * 1e4
        gradient, out = compiled(name, case)(arrays)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))
        wanted = in_float64(case.attend(reference.compressed_attention), arrays)
        np.testing.assert_allclose(out, wanted, rtol=1e-3, atol=1e-4)

    def test_vmap_and_remat(self, name):
        case = CASES["tail, sink, groups"]
        arrays, _ = case.operands()

        def gradients(implementation):
            attend = jax.checkpoint(case.attend(implementation))
            return jax.vmap(jax.grad(lambda arrays: jnp.sum(attend(arrays) ** 2)))

        both = jax.tree.map(lambda x: jnp.stack([x, x / 2]), arrays)
        found = jax.jit(gradients(small(case, name)))(both)
        wanted = in_float64(gradients(reference.compressed_attention), both)
        assert_close(found, wanted)


@pytest.mark.parametrize("name", ["xla_blocked", "pallas_tpu"])
@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(
    tokens=st.integers(1, 40),
    groups=st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3)]),
    window=st.sampled_from([None, 1, 3, 8, 50]),
    chunk=st.sampled_from([(2, 2), (4, 2), (8, 8), (5, 3)]),
    documents=st.integers(1, 3),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    blocks=st.tuples(st.integers(1, 16), st.integers(1, 16), st.integers(1, 2)),
)
@pytest.mark.slow
def test_tiles_of_any_size_equal_loops(
    name, tokens, groups, window, chunk, documents, flags, blocks
):
    tail_only, sink, shared = flags
    case = Case(
        tokens, *groups, window, tail_only, sink, chunk, shared, documents if tokens > 1 else 1
    )
    if name == "pallas_tpu":
        blocks = TpuBlocks(blocks[0], 1, blocks[1], blocks[2], blocks[2])
        options = {"blocks": blocks, "interpret": True}
    else:
        blocks = Blocks(min(blocks[0], tokens), min(blocks[1], tokens), blocks[2])
        options = {"blocks": blocks}
    attend = case.attend(functools.partial(IMPLEMENTATIONS[name], **options))
    arrays, _ = case.operands()
    assert_close(jax.jit(attend)(arrays), case.by_loops())


class TestOnTpu:
    """The kernels on a simulated TPU, and what a real one would compile."""

    def test_memory_that_was_not_written_is_not_read_and_nothing_races(self):
        case = Case(11, documents=2, batch=1, sink=True, chunk=(4, 2), shared=True)
        arrays, _ = case.operands()

        def run(arrays, interpret):
            return case.values_and_gradients(small(case, "pallas_tpu", interpret))(arrays)

        gradient, out = strictly(run, arrays)
        assert_close(out, case.by_loops())
        assert_close(gradient, expected(case))

    def test_tiles_that_no_query_may_see_are_not_read(self):
        """NaN there would spoil what it is multiplied with, even by zero."""
        case = Case(tokens=24, heads=1, window=3, chunk=(2, 2), batch=1)
        arrays, call = case.operands()
        call["valid"][2:] = False
        spoilt = {k: v.at[:, 4:].set(np.nan) if "entry" in k else v for k, v in arrays.items()}
        spoilt |= {k: v.at[:, :10].set(np.nan) for k, v in arrays.items() if k in ("key", "value")}
        positions = np.arange(20, 24)

        def run(arrays):
            attend = small(case, "pallas_tpu")
            with mock.patch.object(dispatch, "load", lambda op, name: attend):
                query = arrays["query"][:, positions]
                return api.compressed_attention(
                    **arrays | {"query": query},
                    **call,
                    window=3,
                    query_position=positions,
                    implementation="reference",
                )

        run = jax.jit(run)
        np.testing.assert_array_equal(run(spoilt), run(arrays))
        assert np.isfinite(run(spoilt)).all()

    @pytest.mark.parametrize("name", mostly_slow(SPECS, fast=["qwen3_0_6b_4k"]))
    def test_lowers_forward_and_backward(self, name):
        (query, near, entry, which, sink), options = SPECS[name]
        call = functools.partial(pallas_tpu.compressed_attention, **options)
        assert lower_for_tpu(call, query, near, entry, which, sink).count("tpu_custom_call") == 1

        def gradients(query, near, entry, which, sink):
            def loss(*real):
                return jnp.sum(call(*real[:3], which, real[3]).astype(jnp.float32))

            return jax.grad(loss, argnums=range(4))(query, near, entry, sink)

        # Forward, then by queries, by exact tokens and by entries.
        found = lower_for_tpu(gradients, query, near, entry, which, sink)
        assert found.count("tpu_custom_call") == 4

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"dtype": "float16"}, "query.dtype=float16"),
            ({"tokens": 0}, "nothing to do"),
            ({"tokens": 2**24}, "overflow scalar memory"),
        ],
    )
    def test_says_what_it_cannot_do(self, change, message):
        sizes = {"dtype": "bfloat16", "tokens": 64} | change
        tokens, dtype = sizes["tokens"], sizes["dtype"]
        row = jax.ShapeDtypeStruct((1, tokens, 1, 8), dtype)
        entry = jax.ShapeDtypeStruct((1, 8, 1, 8), dtype)
        lengths = (tokens, tokens, tokens, tokens, 8, 8)
        which = [jax.ShapeDtypeStruct((1, length), jnp.int32) for length in lengths]

        def call(query, pair, entry, which):
            which = reads(*which[:1], *which[2:], window=4, tail_only=False)
            return pallas_tpu.compressed_attention(query, pair, entry, which, None, span=4)

        with pytest.raises(NotImplementedError, match=message):
            jax.eval_shape(call, row, (row, row), (entry, entry), which)

    @pytest.mark.parametrize("span", [None, 1, 16, 4096])
    @pytest.mark.parametrize("kv_heads", [1, 8])
    def test_tiles_suit_the_layout(self, span, kv_heads):
        for query in ((1, 4096, 16, 64), (1, 131072, 128, 512), (2, 7, 8, 80), (1, 1, 24, 16)):
            blocks = tpu_heuristic(query, kv_heads, query[1], query[1] // 8, span)
            assert query[2] // kv_heads % blocks.heads == 0
            assert blocks.query * blocks.heads <= 512
            assert blocks.query % 16 == blocks.token % 16 == blocks.entry % 16 == 0

    @pytest.mark.parametrize("span", [1, 3, 8, 100])
    @pytest.mark.parametrize(("query", "token"), [(4, 5), (8, 2), (3, 16)])
    def test_no_tile_meets_more_than_are_visited(self, span, query, token):
        """Windows of every length, counted by hand."""
        tokens = 60
        at = np.arange(tokens)
        met = (at <= at[:, None]) & (at > at[:, None] - span)
        rows, columns = -(-tokens // query), -(-tokens // token)
        met = np.pad(met, ((0, rows * query - tokens), (0, columns * token - tokens)))
        met = met.reshape(rows, query, columns, token).any((1, 3))
        visits = plan.most_visits(span, query, token, rows, columns, back=True)
        assert met.sum(1).max() <= visits <= met.sum(1).max() + 1
        visits = plan.most_visits(span, token, query, columns, rows, back=False)
        assert met.sum(0).max() <= visits <= met.sum(0).max() + 1


def test_every_row_of_a_batch_stands_alone():
    case = CASES["documents"]
    arrays, call = case.operands()
    run = jax.jit(functools.partial(api.compressed_attention, window=case.window))
    sink = arrays.pop("sink")
    whole = run(**arrays, sink=sink, **call)
    segment = call.pop("segment")
    for b in range(case.batch):
        row = {k: v[b : b + 1] for k, v in arrays.items()}
        alone = run(**row, sink=sink, segment=segment[b : b + 1], **call)
        np.testing.assert_allclose(alone[0], whole[b], rtol=1e-5, atol=1e-6)


def compiled_memory(tokens: int, *, gradient: bool) -> int:
    """Temporary bytes of a compiled call with W8/S8, window 16; nothing is run."""
    shape = jax.ShapeDtypeStruct((1, tokens, 2, 8), jnp.float32)
    entry = jax.ShapeDtypeStruct((1, tokens // 8, 1, 8), jnp.float32)
    row = jax.ShapeDtypeStruct((1, tokens, 1, 8), jnp.float32)
    end = jnp.arange(7, tokens, 8)

    def attend(query, key, value, entry_key, entry_value):
        operands = query, key, value, entry_key, entry_value
        return api.compressed_attention(
            *operands, end, window=16, tail_only=True, implementation="xla_blocked"
        ).sum()

    function = jax.grad(attend, argnums=range(5)) if gradient else attend
    lowered = jax.jit(function).lower(shape, row, row, entry, entry)
    return lowered.compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("gradient", [False, True])
def test_memory_is_linear_in_tokens(gradient):
    small, large = (compiled_memory(tokens, gradient=gradient) for tokens in (16384, 65536))
    assert large < 4.5 * small
    assert large < 65536 * 8192 / 8  # bytes: no array of T x E


def test_few_scores_are_made_in_one_piece_and_many_are_not():
    few, many = Case(tokens=64), Case(tokens=8192, head_dim=8, chunk=(8, 8))
    for case, wanted in ((few, False), (many, True)):
        arrays, _ = case.operands()
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arrays)
        text = jax.jit(case.attend(xla_blocked.compressed_attention)).lower(shapes).as_text()
        assert ("stablehlo.while" in text) == wanted


@pytest.mark.parametrize("span", [None, 16, 4096])
def test_a_tile_of_scores_fits_a_cache(span):
    for query in ((1, 4096, 4, 64), (1, 131072, 16, 128), (8, 2048, 64, 512), (1, 7, 1, 4)):
        blocks = blocked_heuristic(query, query[1], query[1] // 8, span)
        assert 1 <= blocks.query <= query[1]
        assert 1 <= blocks.token <= query[1]
        assert query[0] * query[2] * blocks.query * max(blocks.token, blocks.entry) <= 2**20
        if span == 16:  # all that a tile of queries reads nearby
            assert blocks.token >= min(query[1], blocks.query + span - 1)


class TestBadInput:
    """What is refused, before anything is compiled."""

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"key": jnp.zeros((2, 21, 1, 5))}, r"key.shape=.*query makes it \(2, T, K, 4\)"),
            ({"value": jnp.zeros((2, 20, 1, 4))}, r"value.shape=.*key makes it"),
            ({"value": None}, "value=None.*or nowhere"),
            ({"entry_key": jnp.zeros((2, 6, 2, 4))}, r"entry_key.shape=.*key makes it"),
            ({"key": jnp.zeros((2, 21, 1, 4), jnp.bfloat16)}, r"key.dtype=bfloat16.*cast"),
            ({"window": 0}, "window=0.*raise it"),
            ({"end": np.array([0, 3, 2, 9, 10, 11])}, r"end=\[0 3 2.*sorted"),
            ({"end": np.array([-1, 3, 4, 9, 10, 11])}, r"end=\[-1.*not negative"),
            ({"end": np.arange(6.0)}, "end.dtype=float64.*integers"),
            ({"sink": jnp.zeros(2, int)}, "sink.dtype=int32.*astype"),
            ({"query_position": np.zeros(21)}, "query_position.dtype=float64.*integers"),
            ({"end": np.arange(5)}, r"end.shape=\(5,\).*\(6,\)"),
            ({"valid": np.ones(3, bool)}, r"valid.shape=\(3,\)"),
            ({"segment": jnp.zeros((2, 3), int)}, r"segment.shape=\(2, 3\)"),
            ({"sink": jnp.zeros(3)}, r"sink.shape=\(3,\).*\(2,\)"),
            ({"query": jnp.zeros((2, 20, 2, 4))}, "query.shape=.*pass query_position"),
            ({"query_position": np.arange(3)}, r"query_position.shape=\(3,\)"),
            ({"implementation": "blocked"}, "'blocked' is none of.*did you mean 'xla_blocked'"),
        ],
    )
    def test_names_the_argument_and_the_remedy(self, change, message):
        case = Case()
        arrays, call = case.operands()
        with pytest.raises(ValueError, match=message):
            api.compressed_attention(**{"window": 8} | arrays | call | change)

    def test_integers_are_no_operands(self):
        case = Case()
        arrays, call = case.operands()
        arrays = {k: v.astype(jnp.int32) for k, v in arrays.items()}
        with pytest.raises(ValueError, match="query.dtype=int32.*astype"):
            api.compressed_attention(**arrays, **call, window=8)
