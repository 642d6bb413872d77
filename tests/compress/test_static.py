# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The static compressor, variant by variant: against loops over tokens, and streamed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phasejax.compress.base import Entries
from phasejax.compress.geometry import WindowGeometry
from phasejax.compress.static import StaticCompressor

BATCH, TOKENS, WIDTH, HEAD_DIM = 2, 26, 6, 4
GRIDS = [(8, 8), (8, 4), (8, 6), (2, 2), (12, 12), (1, 1)]
KINDS = {
    "scalar": {},
    "scalar_2kv": {"num_kv_heads": 2},
    "scalar_4kv": {"num_kv_heads": 4},
    "no_bias": {"gate_bias": False},
    "uniform": {"gate": "uniform"},
    "vector": {"gate": "vector"},
    "vector_2kv_no_bias": {"gate": "vector", "gate_bias": False, "num_kv_heads": 2},
    "tied": {"tie_kv": True},
    "post_norm": {"post_norm": True},
    "uniform_tied_post_norm": {"gate": "uniform", "tie_kv": True, "post_norm": True},
    "stride_start": {"rotary_anchor": "stride_start"},
}
# Every grid with the default gate, every kind with overlap.
CASES = [(*grid, "scalar") for grid in GRIDS]
CASES += [(8, 6, kind) for kind in KINDS if kind != "scalar"]
cases = pytest.mark.parametrize(("window", "stride", "kind"), CASES)


def build(
    window: int,
    stride: int,
    *,
    num_kv_heads: int = 1,
    gate: str = "scalar",
    gate_bias: bool = True,
    tie_kv: bool = False,
    post_norm: bool = False,
    rotary_anchor: str = "window_start",
    dtype: str = "float32",
) -> StaticCompressor:
    """A compressor with random parameters: zero biases and unit gains would hide errors."""
    make = lambda: StaticCompressor(  # noqa: E731
        WindowGeometry(window, stride, rotary_anchor),
        WIDTH,
        num_kv_heads,
        HEAD_DIM,
        tie_kv=tie_kv,
        gate=gate,
        gate_bias=gate_bias,
        post_norm=post_norm,
        norm_eps=1e-6,
        kernel_init=nnx.initializers.zeros,
        dtype=jnp.dtype(dtype),
        param_dtype=jnp.dtype("float32"),
        rngs=nnx.Rngs(0),
    )
    rng = np.random.default_rng(1)
    graph, state = nnx.split(nnx.eval_shape(make))  # compiles nothing
    draw = lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32)  # noqa: E731
    return nnx.merge(graph, jax.tree.map(draw, state))


_BUILT: dict = {}


def compiled(window: int, stride: int, kind: str):
    """A compressor, its one-shot call with gates, and its append: jitted, kept for all tests."""
    key = (window, stride, kind)
    if key not in _BUILT:
        graph, state = nnx.split(build(window, stride, **KINDS[kind]))
        both = jax.jit(lambda s, h: (lambda c: (c(h), c.gates(h)))(nnx.merge(graph, s)))
        append = jax.jit(lambda s, stream, h: nnx.merge(graph, s).append(stream, h))
        _BUILT[key] = (
            nnx.merge(graph, state),
            lambda h: both(state, jnp.asarray(h)),
            lambda stream, h: append(state, stream, h),
        )
    return _BUILT[key]


def hidden(seed: int = 0, tokens: int = TOKENS) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(BATCH, tokens, WIDTH)).astype(np.float32)


def pool_by_loops(pool, geometry: WindowGeometry, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Entries [B, E, K, H] and gates [B, E, W, K, H] of one branch, scalar by scalar, float64."""
    heads, dim = pool.shape
    payload_map = np.asarray(pool.payload[...], np.float64)
    gate_map = None if pool.gate_map is None else np.asarray(pool.gate_map[...], np.float64)
    bias = None if pool.gate_bias is None else np.asarray(pool.gate_bias[...], np.float64)
    gain = None if pool.post_norm is None else np.asarray(pool.post_norm.scale[...], np.float64)
    window, stride = geometry.window, geometry.stride
    starts = [s for s in range(0, x.shape[1], stride) if s + window <= x.shape[1]]
    entries = np.zeros((x.shape[0], len(starts), heads, dim))
    gates = np.zeros((x.shape[0], len(starts), window, heads, dim))
    for b, e, k in np.ndindex(x.shape[0], len(starts), heads):
        tokens = [x[b, starts[e] + i].astype(np.float64) for i in range(window)]
        payload = [
            np.array([tokens[i] @ payload_map[i, :, k * dim + c] for c in range(dim)])
            for i in range(window)
        ]
        if gain is not None:
            payload = [p / np.sqrt(np.mean(p * p) + 1e-6) * gain for p in payload]
        for c in range(dim):
            column = {"uniform": None, "scalar": k, "vector": k * dim + c}[pool.gate]
            score = np.zeros(window)
            for i in range(window):
                if column is not None:
                    score[i] = tokens[i] @ gate_map[i, :, column]
                    if bias is not None:
                        score[i] += bias[i, column]
            weight = np.array([np.exp(s) for s in score])
            weight /= weight.sum()
            gates[b, e, :, k, c] = weight
            entries[b, e, k, c] = sum(weight[i] * payload[i][c] for i in range(window))
    return entries, gates


@cases
def test_entries_and_gates_are_those_of_the_definition(window, stride, kind):
    compressor, call, _ = compiled(window, stride, kind)
    x, geometry = hidden(), compressor.geometry
    entries, weights = call(x)
    branches = ("key",) if compressor.value is None else ("key", "value")
    assert (entries.value is None) == (compressor.value is None) == KINDS[kind].get("tie_kv", False)
    assert set(weights) == set(branches)
    for name in branches:
        wanted, wanted_gates = pool_by_loops(getattr(compressor, name), geometry, x)
        np.testing.assert_allclose(getattr(entries, name), wanted, rtol=1e-4, atol=1e-5)
        found = np.broadcast_to(weights[name], wanted_gates.shape)
        np.testing.assert_allclose(found, wanted_gates, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(weights[name].sum(axis=2), 1, atol=1e-6)
        assert weights[name].dtype == jnp.float32
        assert weights[name].shape[-1] == (HEAD_DIM if compressor.key.gate == "vector" else 1)
    count = geometry.num_entries(TOKENS)
    np.testing.assert_array_equal(entries.start, geometry.start(count))
    np.testing.assert_array_equal(entries.end, geometry.end(count))
    np.testing.assert_array_equal(entries.position, geometry.position(count))
    assert np.asarray(entries.valid).all()


@cases
def test_a_token_changes_the_entries_of_its_windows_and_no_others(window, stride, kind):
    compressor, call, _ = compiled(window, stride, kind)
    x = hidden()
    before, _ = call(x)
    for token in range(TOKENS):
        changed = x.copy()
        changed[:, token] += 1
        after, _ = call(changed)
        touched = {e for e in compressor.geometry.offsets(token) if e < len(before.start)}
        for name in ("key",) if compressor.value is None else ("key", "value"):
            new, old = (np.asarray(getattr(entries, name)) for entries in (after, before))
            moved = np.any(new != old, axis=(0, 2, 3))
            assert set(np.flatnonzero(moved)) == touched, f"token {token}, {name}"


FIELDS = {"key": 1, "value": 1, "start": 0, "end": 0, "position": 0, "valid": 0}  # axis of E


def fields(entries: Entries) -> dict[str, np.ndarray]:
    """The fields as arrays, without a value where values are tied."""
    found = {name: getattr(entries, name) for name in FIELDS}
    return {name: np.asarray(field) for name, field in found.items() if field is not None}


def stream(append, state, x: np.ndarray, cuts: list[int]) -> dict[str, np.ndarray]:
    """Appends x in the pieces between the cuts; the fields of the valid slots, in order."""
    edges = [0, *cuts, x.shape[1]]
    pieces = []
    for first, last in zip(edges, edges[1:], strict=False):
        state, closed = append(state, jnp.asarray(x[:, first:last]))
        assert all((a == a[:1]).all() for f, a in fields(closed).items() if not FIELDS[f])
        closed = {f: a if FIELDS[f] else a[0] for f, a in fields(closed).items()}
        valid = closed["valid"]
        # An entry is given when its last token arrives: not before, and not again.
        assert all(first <= end < last for end in closed["end"][valid])
        pieces.append({f: a.compress(valid, axis=FIELDS[f]) for f, a in closed.items()})
    return {
        f: np.concatenate([p[f] for p in pieces], axis)
        for f, axis in FIELDS.items()
        if f in pieces[0]
    }


def assert_same_entries(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-6, err_msg=name)
        assert found[name].dtype == wanted[name].dtype


@cases
def test_token_by_token_equals_one_shot(window, stride, kind):
    compressor, call, append = compiled(window, stride, kind)
    x = hidden()
    found = stream(append, compressor.init_state(BATCH), x, list(range(1, TOKENS)))
    assert_same_entries(found, fields(call(x)[0]))


@pytest.mark.parametrize(("window", "stride"), [(8, 8), (8, 6), (2, 2)])
@pytest.mark.parametrize("cuts", [[], [9, 18]], ids=str)
def test_many_tokens_at_once_equal_one_shot(window, stride, cuts):
    compressor, call, append = compiled(window, stride, "scalar")
    x = hidden(3)
    found = stream(append, compressor.init_state(BATCH), x, cuts)
    assert_same_entries(found, fields(call(x)[0]))


@pytest.mark.parametrize(("window", "stride"), [(8, 8), (8, 4), (8, 6), (3, 2)])
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(pieces=st.lists(st.sampled_from([1, 2, 5, 9, 13]), min_size=1, max_size=6))
def test_any_cuts_equal_one_shot(window, stride, pieces):
    # Few sizes of pieces, so that append is compiled a few times only.
    compressor, _, append = compiled(window, stride, "scalar")
    x = hidden(4, 60)[:, : sum(pieces)]
    wanted, _ = pool_by_loops(compressor.key, compressor.geometry, x)
    found = stream(append, compressor.init_state(BATCH), x, np.cumsum(pieces)[:-1].tolist())
    np.testing.assert_allclose(found["key"], wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found["start"], compressor.geometry.start(wanted.shape[1]))


@pytest.mark.parametrize(("window", "stride"), [(8, 8), (8, 6), (2, 2)])
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(st.tuples(*[st.integers(0, 5)] * 3), min_size=4, max_size=12))
def test_rows_of_other_lengths_and_tokens_taken_back(window, stride, steps):
    """Each step takes tokens of each row, then wrong ones, which it takes back."""
    compressor, _, _ = compiled(window, stride, "scalar")
    graph, params = nnx.split(compressor)
    if (window, stride) not in _BUILT:
        _BUILT[window, stride] = jax.jit(lambda p, *args: nnx.merge(graph, p).append(*args))
    append = _BUILT[window, stride]
    x, place = hidden(5, 70), np.zeros(BATCH, int)
    state, found = compressor.init_state(BATCH, spare=5), [{} for _ in range(BATCH)]
    for *counts, wrong in steps:
        new = np.stack([row[at : at + 5] for row, at in zip(x, place, strict=True)])
        count = jnp.asarray(counts, jnp.int32)
        state, made = append(params, state, jnp.asarray(new), count)
        for b, e in zip(*np.nonzero(np.asarray(made.valid)), strict=True):
            found[b][int(made.start[b, e])] = made.key[b, e]
        drafts = jnp.full(BATCH, wrong, jnp.int32)
        state = append(params, state, jnp.asarray(new + 9), drafts)[0].rewind(drafts)
        place += np.asarray(counts)
        assert state.length.tolist() == place.tolist()
    wanted, _ = pool_by_loops(compressor.key, compressor.geometry, x)
    for b, entries in enumerate(found):
        assert sorted(entries) == [*range(0, place[b] - window + 1, stride)]
        for start, key in entries.items():
            np.testing.assert_allclose(key, wanted[b, start // stride], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stride", [8, 4])
def test_uniform_is_a_gate_without_scores(stride):
    uniform, scalar = build(8, stride, gate="uniform"), build(8, stride)
    for name in ("key", "value"):
        pool = getattr(scalar, name)
        pool.payload[...] = getattr(uniform, name).payload[...]
        pool.gate_map[...] = jnp.zeros_like(pool.gate_map[...])
        pool.gate_bias[...] = jnp.zeros_like(pool.gate_bias[...])
    x = jnp.asarray(hidden())
    assert_same_entries(fields(jax.jit(scalar)(x)), fields(jax.jit(uniform)(x)))


@pytest.mark.parametrize("stride", [8, 4])
def test_a_vector_gate_with_equal_channels_is_scalar(stride):
    vector = build(8, stride, gate="vector", num_kv_heads=2)
    scalar = build(8, stride, num_kv_heads=2)
    for name in ("key", "value"):
        wide, narrow = getattr(vector, name), getattr(scalar, name)
        wide.payload[...] = narrow.payload[...]
        wide.gate_map[...] = jnp.repeat(narrow.gate_map[...], HEAD_DIM, axis=-1)
        wide.gate_bias[...] = jnp.repeat(narrow.gate_bias[...], HEAD_DIM, axis=-1)
    x = jnp.asarray(hidden())
    assert_same_entries(fields(jax.jit(vector)(x)), fields(jax.jit(scalar)(x)))


@pytest.mark.parametrize(("window", "stride"), GRIDS)
def test_a_short_sequence_has_no_entries(window, stride):
    compressor, _, _ = compiled(window, stride, "scalar")
    short = jnp.asarray(hidden(tokens=window)[:, : window - 1])
    entries = compressor(short)
    assert entries.key.shape == (BATCH, 0, 1, HEAD_DIM)
    assert entries.valid.shape == (0,)
    gates = compressor.gates(short)
    assert gates["key"].shape == (BATCH, 0, window, 1, 1)


def test_every_offset_has_parameters_of_its_own():
    compressor = build(8, 4, num_kv_heads=2)
    shapes = jax.tree.map(jnp.shape, nnx.to_pure_dict(nnx.state(compressor, nnx.Param)))
    branch = {"payload": (8, WIDTH, 8), "gate_map": (8, WIDTH, 2), "gate_bias": (8, 2)}
    assert shapes == {"key": branch, "value": branch}
    tied = build(8, 4, gate="uniform", tie_kv=True)
    assert set(nnx.to_pure_dict(nnx.state(tied, nnx.Param))) == {"key"}


def test_gates_stay_float32_where_products_do_not():
    low = build(8, 8, dtype="bfloat16")
    x = jnp.asarray(hidden(), jnp.bfloat16)
    entries, gates = jax.jit(lambda x: (jax.tree.leaves(low(x)), low.gates(x)))(x)
    assert entries[0].dtype == jnp.bfloat16
    assert gates["key"].dtype == jnp.float32
    state = low.init_state(BATCH)
    _, closed = jax.jit(lambda s, x: low.append(s, x))(state, x[:, :8])
    assert closed.key.dtype == jnp.bfloat16
    np.testing.assert_array_equal(closed.key, entries[0][:, :1])


@pytest.mark.parametrize("kind", ["scalar", "vector", "uniform", "tied"])
def test_no_implicit_promotion(kind, strict_numerics):
    compressor = build(8, 4, **KINDS[kind])
    state = compressor.init_state(BATCH)

    def everything(x):
        return jax.tree.leaves((compressor(x), compressor.gates(x), compressor.append(state, x)))

    jax.eval_shape(everything, jnp.zeros((BATCH, TOKENS, WIDTH)))
