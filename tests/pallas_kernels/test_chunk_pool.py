# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Pooling over chunks of one length: every implementation against loops, in float64."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.chunk_pool import pallas_tpu, reference, xla_blocked
from pallas_kernels.chunk_pool.api import chunk_pool
from pallas_kernels.chunk_pool.arg_specs import SPECS
from pallas_kernels.chunk_pool.config import TPU_SLAB, Blocks, tpu_heuristic
from tests.pallas_kernels.compare import (
    assert_close,
    in_float64,
    lower_for_tpu,
    mostly_slow,
    strictly,
)

IMPLEMENTATIONS = {
    "reference": reference.chunk_pool,
    "xla_blocked": xla_blocked.chunk_pool,
    "pallas_tpu": functools.partial(
        pallas_tpu.chunk_pool, blocks=Blocks(TPU_SLAB, 1), interpret=True
    ),
}
# batch, entries, S, lanes, channels, gates
CASES = {
    "scalar": (2, 5, 4, 1, 6, 1),
    "by head": (2, 5, 3, 1, 6, 2),
    "vector": (2, 5, 4, 1, 6, 6),
    "vector with overlap": (2, 5, 4, 2, 6, 6),
    "scalar with overlap": (1, 6, 3, 2, 6, 2),
    "one window": (2, 1, 4, 2, 6, 6),
    "three lanes": (1, 2, 2, 3, 4, 1),
    "chunks of one": (1, 4, 1, 1, 4, 4),
    "no window": (2, 0, 4, 2, 6, 6),
    "heads across panels": (1, 3, 2, 2, 192, 4),
    "vector across panels": (1, 3, 2, 1, 160, 160),
    "several slabs": (1, 37, 2, 2, 4, 2),
}
# What a simulated TPU is tried on in every run.
FAST = ("vector with overlap", "several slabs")


def cases():
    for name in IMPLEMENTATIONS:
        for case, shape in CASES.items():
            if case == "no window" and name == "pallas_tpu":
                continue  # it leaves nothing to do to the others
            is_slow = case not in FAST if name == "pallas_tpu" else "panels" in case
            for dtype in ("float32", "bfloat16") if case == FAST[0] else ("float32",):
                marks = [pytest.mark.slow] if is_slow else []
                yield pytest.param(name, shape, dtype, id=f"{name}-{case}-{dtype}", marks=marks)


def operands(shape, dtype="float32", seed=0):
    batch, entries, stride, lanes, channels, gates = shape
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype)  # noqa: E731
    rows = (batch, entries, stride, lanes)
    return draw(*rows, channels), draw(*rows, gates), draw(stride, lanes, gates)


def by_loops(payload, score, bias):
    """One entry and channel at a time, in float64."""
    payload, score, bias = (np.asarray(x, np.float64) for x in (payload, score, bias))
    batch, entries, stride, lanes, channels = payload.shape
    out = np.zeros((batch, entries, channels))
    for b, e, d in np.ndindex(out.shape):
        g = d // (channels // score.shape[-1])
        rows = [(e - (lanes - 1 - lane), i, lane) for lane in range(lanes) for i in range(stride)]
        rows = [row for row in rows if row[0] >= 0]
        weight = np.exp([score[b, c, i, lane, g] + bias[i, lane, g] for c, i, lane in rows])
        values = np.array([payload[b, c, i, lane, d] for c, i, lane in rows])
        out[b, e, d] = weight @ values / weight.sum()
    return out


def values_and_gradients(function):
    """Gradient of a fixed weighing of the output by every operand, and the output."""

    def loss(operands):
        out = function(*operands)
        wide = out.astype(jnp.promote_types("float32", out.dtype))
        return jnp.sum(wide * jnp.cos(jnp.arange(out.size)).reshape(out.shape)), out

    return jax.grad(loss, has_aux=True)


@functools.cache
def compiled(name):
    return jax.jit(values_and_gradients(IMPLEMENTATIONS[name]))


@pytest.mark.parametrize(("name", "shape", "dtype"), list(cases()))
def test_values_and_gradients(name, shape, dtype):
    x = operands(shape, dtype)
    gradient, out = compiled(name)(x)
    assert out.dtype == dtype
    assert_close(out, by_loops(*x), dtype)
    wanted, _ = in_float64(values_and_gradients(reference.chunk_pool), x)
    assert [g.dtype for g in gradient] == [v.dtype for v in x]
    assert_close(gradient, wanted, dtype)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
class TestChunkPool:
    """What every implementation owes."""

    def test_gradient_is_that_of_the_loops(self, name):
        x = operands(CASES["several slabs"])
        gradient, out = compiled(name)(x)
        weights = np.cos(np.arange(out.size)).reshape(out.shape)
        rng = np.random.default_rng(1)
        for n, operand in enumerate(x):
            direction = rng.normal(size=operand.shape)
            ends = []
            for sign in (1, -1):
                moved = [np.asarray(v, np.float64) for v in x]
                moved[n] = moved[n] + sign * 1e-5 * direction
                ends.append((by_loops(*moved) * weights).sum())
            found = float((np.asarray(gradient[n], np.float64) * direction).sum())
            np.testing.assert_allclose(found, (ends[0] - ends[1]) / 2e-5, rtol=1e-4, atol=1e-4)

    def test_large_scores_do_not_overflow(self, name):
        payload, score, bias = operands(CASES["vector with overlap"])
        x = (payload, score * 1e4, bias - 1e4)
        gradient, out = compiled(name)(x)
        assert all(np.isfinite(g).all() for g in gradient)
        assert_close(out, in_float64(reference.chunk_pool, *x))

    def test_a_row_feeds_its_own_entry_and_through_its_lane_the_next(self, name):
        payload, score, bias = operands(CASES["vector with overlap"])
        run = lambda *x: compiled(name)(x)[1]  # noqa: E731
        before = np.asarray(run(payload, score, bias))
        for lane, entry in ((1, 2), (0, 3)):
            after = np.asarray(run(payload.at[:, 2, 1, lane].add(1), score, bias))
            assert set(np.flatnonzero((after != before).any((0, 2)))) == {entry}


@pytest.mark.parametrize("name", mostly_slow(IMPLEMENTATIONS, fast=("reference", "xla_blocked")))
def test_vmap_and_remat(name):
    x = operands(CASES["vector with overlap"])
    function = jax.checkpoint(IMPLEMENTATIONS[name])
    loss = lambda x: jnp.sum(function(*x) ** 2)  # noqa: E731
    both = jax.tree.map(lambda v: jnp.stack([v, v / 2]), x)
    assert_close(jax.jit(jax.vmap(jax.grad(loss)))(both), in_float64(
        jax.vmap(jax.grad(lambda x: jnp.sum(reference.chunk_pool(*x) ** 2))), both
    ))  # fmt: skip


class TestOnTpu:
    """The kernel on a simulated TPU, and what a real one would compile."""

    def test_memory_that_was_not_written_is_not_read_and_nothing_races(self):
        """Two tiles, the last partial; lanes carry rows and gradients from one to the other."""
        x = operands(CASES["several slabs"])

        def run(*x, interpret):
            call = functools.partial(pallas_tpu.chunk_pool, blocks=Blocks(TPU_SLAB, 1))
            return values_and_gradients(functools.partial(call, interpret=interpret))(x)

        gradient, out = strictly(run, *x)
        assert_close(out, by_loops(*x))
        assert_close(gradient, in_float64(values_and_gradients(reference.chunk_pool), x)[0])

    @pytest.mark.parametrize(
        "name", mostly_slow(SPECS, fast=("qwen3_0_6b_4k", "deepseek_v4_csa_128k"))
    )
    def test_lowers_forward_and_backward(self, name):
        operands, options = SPECS[name]
        call = functools.partial(pallas_tpu.chunk_pool, **options)
        assert lower_for_tpu(call, *operands).count("tpu_custom_call") == 1
        both = lower_for_tpu(lambda *x: values_and_gradients(call)(x), *operands)
        assert both.count("tpu_custom_call") == 2

    @pytest.mark.parametrize(
        ("shape", "dtype", "message"),
        [
            ((1, 4, 2, 1, 6, 6), "float16", "neither float32 nor bfloat16"),
            (CASES["no window"], "float32", "no entries"),
            ((1, 2, 1, 18, 2, 1), "float32", "L=18"),
            ((1, 1, 2**11, 1, 512, 512), "float32", "overflow VMEM"),
            ((1, 1, 2, 1, 512, 256), "float32", "G=256 gates for 512"),
        ],
    )
    def test_says_what_it_cannot_do(self, shape, dtype, message):
        batch, entries, stride, lanes, channels, gates = shape
        rows = (batch, entries, stride, lanes)
        shapes = ((*rows, channels), (*rows, gates), (stride, lanes, gates))
        with pytest.raises(NotImplementedError, match=message):
            jax.eval_shape(
                pallas_tpu.chunk_pool, *(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes)
            )

    def test_gates_may_cross_panels(self):
        """Gates of 48 channels: the third lies in both panels of 128."""
        assert pallas_tpu._gates_of(0, 192, 4) == [(0, 0), (1, 48), (2, 96)]
        assert pallas_tpu._gates_of(1, 192, 4) == [(2, -32), (3, 16)]

    @pytest.mark.parametrize("entries", [1, 16, 17, 4096])
    @pytest.mark.parametrize(("stride", "channels"), [(1, 64), (8, 1024), (128, 512)])
    def test_tiles_are_whole_slabs(self, entries, stride, channels):
        blocks = tpu_heuristic(entries, stride, channels)
        assert blocks.entry % TPU_SLAB == 0
        assert blocks.entry < entries + TPU_SLAB
        assert stride % blocks.unroll == 0


@pytest.mark.slow
@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(
    rows=st.tuples(*[st.integers(1, 5)] * 3),
    lanes=st.integers(1, 3),
    gates=st.sampled_from([1, 2, 6]),
)
def test_any_shape_equals_loops(rows, lanes, gates):
    x = operands((*rows, lanes, 6, gates))
    assert_close(jax.jit(xla_blocked.chunk_pool)(*x), by_loops(*x))


def test_without_scores_rows_weigh_alike():
    payload, score, bias = operands(CASES["vector with overlap"])
    found = jax.jit(functools.partial(chunk_pool, implementation="xla_blocked"))(payload)
    assert_close(found, by_loops(payload, score[..., :1] * 0, bias[..., :1] * 0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"payload": jnp.zeros((2, 5, 4, 6))}, r"payload.shape=\(2, 5, 4, 6\).*reshape"),
        ({"payload": jnp.zeros((2, 5, 0, 2, 6))}, "payload.shape=.*1 at least"),
        ({"score": jnp.zeros((2, 5, 4, 1, 6))}, "score.shape=.*payload makes it"),
        ({"score": jnp.zeros((2, 5, 4, 2, 4))}, "score.shape=.*divide the 6 channels"),
        ({"score": None}, "score=None.*both or neither"),
        ({"bias": jnp.zeros((4, 6))}, r"bias.shape=\(4, 6\).*score makes it"),
        ({"payload": jnp.zeros((2, 5, 4, 2, 6), int)}, "payload.dtype=int32.*astype"),
        ({"bias": jnp.zeros((4, 2, 6), int)}, "bias.dtype=int32.*astype"),
        ({"implementation": "xla"}, "'xla' is none of chunk_pool's"),
    ],
)
def test_mistakes_are_named(change, message):
    names = ("payload", "score", "bias")
    x = dict(zip(names, operands(CASES["vector with overlap"]), strict=True))
    with pytest.raises(ValueError, match=message):
        chunk_pool(**x | change)
