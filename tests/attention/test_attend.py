# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention over exact tokens and entries: dense and by blocks, against loops in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasejax.attention import blocked, reference
from phasejax.attention.masks import LocalSpan
from phasejax.compress.geometry import WindowGeometry

BATCH, HEAD_DIM = 2, 4
WINDOW, STRIDE = 8, 4
# name: tokens, query heads, KV heads, span, sink, W, S
CASES = {
    "window": (21, 2, 1, LocalSpan(8), False, 8, 4),
    "window_sink": (21, 2, 1, LocalSpan(8), True, 8, 8),
    "window_wider_than_w": (21, 2, 1, LocalSpan(16), False, 8, 8),
    "smallest_window": (20, 2, 1, LocalSpan(7), False, 8, 8),
    "tail": (21, 2, 1, LocalSpan(8, tail_only=True), False, 8, 4),
    "tail_sink": (19, 4, 2, LocalSpan(8, tail_only=True), True, 8, 6),
    "gqa": (18, 4, 2, LocalSpan(5), False, 4, 3),
    "gqa_sink": (18, 6, 2, LocalSpan(5), True, 2, 2),
    "heads_alone": (18, 4, 4, LocalSpan(6), False, 4, 2),
    "multiple_of_the_block": (24, 2, 1, LocalSpan(8), False, 8, 8),
    "shorter_than_w": (5, 2, 1, LocalSpan(8), False, 8, 8),
    "shorter_than_w_tail_sink": (5, 2, 1, LocalSpan(8, tail_only=True), True, 8, 8),
    "one_token": (1, 2, 1, LocalSpan(8), False, 8, 8),
    "span_of_one": (9, 2, 1, LocalSpan(1), False, 2, 2),
    "everything": (13, 2, 1, LocalSpan(None), True, 4, 4),
    "everything_tail": (13, 2, 1, LocalSpan(None, tail_only=True), False, 4, 2),
}
RARE = {"window_wider_than_w", "smallest_window", "heads_alone", "gqa", "shorter_than_w_tail_sink"}
BLOCKED = [name for name, case in CASES.items() if case[3].size is not None]


def marked(names):
    return [pytest.param(n, marks=pytest.mark.slow) if n in RARE else n for n in names]


@functools.cache
def inputs(name: str):
    """Arguments of attend; the last two slots of entries are padded and must not be read."""
    tokens, heads, kv_heads, _, sink, window, stride = CASES[name]
    rng = np.random.default_rng(len(name))
    grid = WindowGeometry(window, stride)
    real = grid.num_entries(tokens)
    count = real + 2
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    arrays = {
        "query": draw(BATCH, tokens, heads, HEAD_DIM),
        "key": draw(BATCH, tokens, kv_heads, HEAD_DIM),
        "value": draw(BATCH, tokens, kv_heads, HEAD_DIM),
        "entry_key": draw(BATCH, count, kv_heads, HEAD_DIM),
        "entry_value": draw(BATCH, count, kv_heads, HEAD_DIM),
    }
    end = grid.end(count)
    end[real:] = 0  # a padded slot that looks complete from the first token on
    if sink:
        arrays["sink"] = draw(heads)
    return arrays, end, np.arange(count) < real


def attend_by_loops(name: str, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """One query, one head, one key at a time; masks from the words of the definition."""
    tokens, heads, kv_heads, span, _, window, stride = CASES[name]
    arrays = {k: np.asarray(v, np.float64) for k, v in arrays.items()}
    real = WindowGeometry(window, stride).num_entries(tokens)
    out = np.zeros_like(arrays["query"])
    for b, p, n in np.ndindex(BATCH, tokens, heads):
        k = n // (heads // kv_heads)
        visible = [e for e in range(real) if e * stride + window - 1 <= p]
        covered = {t for e in visible for t in range(e * stride, e * stride + window)}
        near = [t for t in range(p + 1) if span.size is None or p - t < span.size]
        if span.tail_only:
            near = [t for t in near if t not in covered]
        keys = [arrays["key"][b, t, k] for t in near]
        keys += [arrays["entry_key"][b, e, k] for e in visible]
        values = [arrays["value"][b, t, k] for t in near]
        values += [arrays["entry_value"][b, e, k] for e in visible]
        scores = [arrays["query"][b, p, n] @ key / 2 for key in keys]  # 2 = sqrt(HEAD_DIM)
        weights = [np.exp(score) for score in scores]
        total = sum(weights) + (np.exp(arrays["sink"][n]) if "sink" in arrays else 0)
        for weight, value in zip(weights, values, strict=True):
            out[b, p, n] += weight / total * value
    return out


def attend_with(kind: str, name: str, arrays):
    _, end, valid = inputs(name)
    end, valid, span = jnp.asarray(end), jnp.asarray(valid), CASES[name][3]
    names = ("key", "value", "entry_key", "entry_value")
    read = [arrays[n] for n in names]
    how = {"span": span, "sink": arrays.get("sink")}
    if kind == "blocked":
        return blocked.attend(arrays["query"], *read, end, valid, **how)
    position = jnp.arange(arrays["query"].shape[1])
    return reference.attend(arrays["query"], position, *read, end, valid, **how)


@functools.cache
def values_and_gradients(kind: str, name: str):
    """Output, and the gradient of a random weighing of it by every argument."""
    arrays, _, _ = inputs(name)
    weights = np.random.default_rng(9).normal(size=arrays["query"].shape).astype(np.float32)

    @jax.jit
    def run(arrays):
        def loss(arrays):
            out = attend_with(kind, name, arrays)
            return jnp.sum(out * weights), out

        return jax.grad(loss, has_aux=True)(arrays)

    return jax.device_get(run(arrays)), weights


@pytest.mark.parametrize("name", marked(CASES))
def test_reference_equals_loops(name):
    (_, out), _ = values_and_gradients("reference", name)
    np.testing.assert_allclose(out, attend_by_loops(name, inputs(name)[0]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["tail_sink", "gqa_sink", "shorter_than_w"])
def test_gradient_of_the_reference_equals_differences_of_the_loops(name):
    (gradient, _), weights = values_and_gradients("reference", name)
    arrays, _, _ = inputs(name)
    rng = np.random.default_rng(0)
    for argument in arrays:
        direction = rng.normal(size=arrays[argument].shape)
        step = 1e-5
        ends = [
            attend_by_loops(name, arrays | {argument: arrays[argument] + sign * step * direction})
            for sign in (1, -1)
        ]
        difference = ((ends[0] - ends[1]) * weights).sum() / (2 * step)
        found = (gradient[argument] * direction).sum()
        np.testing.assert_allclose(found, difference, rtol=1e-4, atol=1e-4, err_msg=argument)


@pytest.mark.parametrize("name", marked(BLOCKED))
def test_blocks_equal_the_reference(name):
    (gradient, out), _ = values_and_gradients("blocked", name)
    (wanted_gradient, wanted), _ = values_and_gradients("reference", name)
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=2e-6)
    assert gradient.keys() == wanted_gradient.keys()
    for argument, wanted in wanted_gradient.items():
        np.testing.assert_allclose(
            gradient[argument], wanted, rtol=1e-4, atol=5e-6, err_msg=argument
        )


def test_padded_slots_are_not_read():
    for kind in ("reference", "blocked"):
        (gradient, _), _ = values_and_gradients(kind, "window")
        assert np.all(gradient["entry_key"][:, -2:] == 0)
        assert np.all(gradient["entry_value"][:, -2:] == 0)
        assert np.any(gradient["entry_value"][:, :-2] != 0)


def test_queries_at_some_positions_equal_those_rows():
    name = "tail_sink"
    arrays, end, valid = inputs(name)
    (_, out), _ = values_and_gradients("reference", name)
    wanted = np.array([3, 18, 7])
    some = reference.attend(
        jnp.asarray(arrays["query"][:, wanted]),
        jnp.asarray(wanted),
        *(jnp.asarray(arrays[n]) for n in ("key", "value", "entry_key", "entry_value")),
        jnp.asarray(end),
        jnp.asarray(valid),
        span=CASES[name][3],
        sink=jnp.asarray(arrays["sink"]),
    )
    np.testing.assert_allclose(some, out[:, wanted], rtol=1e-5, atol=1e-6)


def test_the_whole_past_has_no_blocks():
    arrays = jax.tree.map(jnp.asarray, inputs("everything")[0])
    with pytest.raises(NotImplementedError, match=r"size=None.*dense reference"):
        attend_with("blocked", "everything", arrays)


def test_large_scores_do_not_overflow():
    arrays = {k: jnp.asarray(v) for k, v in inputs("window_sink")[0].items()}
    arrays["query"] = arrays["query"] * 1e4
    found = [jax.jit(functools.partial(attend_with, kind, "window_sink"))(arrays) for kind in
             ("reference", "blocked")]  # fmt: skip
    assert np.isfinite(found[0]).all()
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_a_row_with_nothing_to_read_gives_zeros():
    scores = jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    mask = jnp.array([[False] * 3, [True, False, True]])
    weights, gradient = jax.value_and_grad(
        lambda s: jnp.sum(reference.softmax_with_sink(s, mask, None) * s), has_aux=False
    )(scores)
    assert np.isfinite(weights)
    assert np.all(np.asarray(gradient)[0] == 0)
    assert np.isfinite(gradient).all()
    found = np.asarray(reference.softmax_with_sink(scores, mask, None))
    assert np.all(found[0] == 0)
    np.testing.assert_allclose(found[1], np.exp([-2, -np.inf, 0]) / (1 + np.exp(-2)), rtol=1e-6)


@pytest.mark.parametrize("kind", ["reference", "blocked"])
def test_queries_before_every_token_give_zeros(kind):
    # Entries alone, and the first of them complete at token 3: the tail of the first three queries
    # is closed by a span that ends before it.
    arrays, _, _ = inputs("gqa")
    arrays = {k: jnp.asarray(v) for k, v in arrays.items()}
    end = jnp.zeros(arrays["entry_key"].shape[1], jnp.int32)
    nothing = jnp.zeros(end.shape, bool)
    args = [arrays[n] for n in ("key", "value", "entry_key", "entry_value")]
    if kind == "reference":
        position = jnp.arange(-2, 16)
        out = reference.attend(arrays["query"], position, *args, end, nothing, span=LocalSpan(5))
        assert np.all(np.asarray(out)[:, :2] == 0)
        assert np.isfinite(out).all()
    else:
        # The padding that fills the last block reads nothing and must not turn into NaN gradients.
        weigh = lambda q: jnp.sum(blocked.attend(q, *args, end, nothing, span=LocalSpan(7)))  # noqa: E731
        assert np.isfinite(jax.jit(jax.grad(weigh))(arrays["query"])).all()


def test_low_precision_values_keep_a_float32_softmax():
    arrays = {k: jnp.asarray(v, jnp.bfloat16) for k, v in inputs("window")[0].items()}
    wanted = attend_by_loops("window", {k: np.asarray(v, np.float64) for k, v in arrays.items()})
    for kind in ("reference", "blocked"):
        found = jax.jit(functools.partial(attend_with, kind, "window"))(arrays)
        assert found.dtype == jnp.bfloat16
        np.testing.assert_allclose(np.asarray(found, np.float64), wanted, atol=0.03)
