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

from pallas_kernels.chunk_pool import reference, xla_blocked
from pallas_kernels.chunk_pool.api import chunk_pool
from tests.pallas_kernels.compare import assert_close, in_float64

IMPLEMENTATIONS = {"reference": reference.chunk_pool, "xla_blocked": xla_blocked.chunk_pool}
# batch, entries, S, lanes, channels, gates
CASES = {
    "scalar": (2, 5, 4, 1, 6, 1),
    "by head": (2, 5, 3, 1, 6, 2),
    "vector": (2, 5, 4, 1, 6, 6),
    "vector with overlap": (2, 5, 4, 2, 6, 6),
    "scalar with overlap": (1, 6, 3, 2, 6, 2),
    "one window": (2, 1, 4, 2, 6, 6),
    "three lanes": (1, 2, 2, 3, 4, 1),
    "no window": (2, 0, 4, 2, 6, 6),
    "chunks of one": (1, 4, 1, 1, 4, 4),
}
cases = pytest.mark.parametrize(
    ("shape", "dtype"),
    [pytest.param(shape, "float32", id=name) for name, shape in CASES.items()]
    + [pytest.param(CASES["vector with overlap"], "bfloat16", id="bfloat16")],
)


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


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
class TestChunkPool:
    """What every implementation owes."""

    @cases
    def test_values_and_gradients(self, name, shape, dtype):
        x = operands(shape, dtype)
        gradient, out = jax.jit(values_and_gradients(IMPLEMENTATIONS[name]))(x)
        assert out.dtype == dtype
        assert_close(out, by_loops(*x), dtype)
        wanted, _ = in_float64(values_and_gradients(reference.chunk_pool), x)
        assert [g.dtype for g in gradient] == [v.dtype for v in x]
        assert_close(gradient, wanted, dtype)

    def test_gradient_is_that_of_the_loops(self, name):
        x = operands(CASES["scalar with overlap"])
        gradient, out = jax.jit(values_and_gradients(IMPLEMENTATIONS[name]))(x)
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
        gradient, out = jax.jit(values_and_gradients(IMPLEMENTATIONS[name]))(x)
        assert all(np.isfinite(g).all() for g in gradient)
        assert_close(out, in_float64(reference.chunk_pool, *x))

    def test_vmap_and_remat(self, name):
        x = operands(CASES["vector with overlap"])
        function = jax.checkpoint(IMPLEMENTATIONS[name])
        loss = lambda x: jnp.sum(function(*x) ** 2)  # noqa: E731
        both = jax.tree.map(lambda v: jnp.stack([v, v / 2]), x)
        assert_close(jax.jit(jax.vmap(jax.grad(loss)))(both), in_float64(
            jax.vmap(jax.grad(lambda x: jnp.sum(reference.chunk_pool(*x) ** 2))), both
        ))  # fmt: skip

    def test_a_row_feeds_its_own_entry_and_through_its_lane_the_next(self, name):
        payload, score, bias = operands(CASES["vector with overlap"])
        run = jax.jit(IMPLEMENTATIONS[name])
        before = np.asarray(run(payload, score, bias))
        for lane, entry in ((1, 2), (0, 3)):
            after = np.asarray(run(payload.at[:, 2, 1, lane].add(1), score, bias))
            assert set(np.flatnonzero((after != before).any((0, 2)))) == {entry}


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
        ({"implementation": "xla"}, "'xla' is none of chunk_pool's"),
    ],
)
def test_mistakes_are_named(change, message):
    names = ("payload", "score", "bias")
    x = dict(zip(names, operands(CASES["vector with overlap"]), strict=True))
    with pytest.raises(ValueError, match=message):
        chunk_pool(**x | change)
