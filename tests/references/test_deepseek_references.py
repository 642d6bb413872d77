# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The scalar references themselves: tables by hand, causality, and what sharing must do."""

import dataclasses
import math

import ml_dtypes
import numpy as np
import pytest

from tests.references import deepseek_v4_numpy as v4
from tests.references import deepseek_v41_numpy as v41

WIDTH, HEAD, INDEX, Q_RANK, O_RANK = 6, 8, 6, 5, 3
SIZES = v4.Sizes(
    heads=2, rope_dims=4, groups=2, index_heads=3, index_topk=2, window=4, yarn_original=64
)
SIZES_41 = dataclasses.replace(SIZES, eps=1e-20)
PLAN = v41.Plan(
    ratios=(0, 2, 2, 1, 1, 1),
    kv_sources=(1, 3),
    index_sources=(1, 3, 5),
    block_source=3,
    block_size=3,
    block_topk=2,
)
TOKENS = 14


def draw(seed: int, shapes: dict[str, tuple[int, ...]]) -> v4.Weights:
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(size=shape) * (0.6 if len(shape) > 1 else 0.2)
        + (name.endswith("norm.weight"))
        for name, shape in shapes.items()
    }


def core_shapes() -> dict[str, tuple[int, ...]]:
    return {
        "wq_a.weight": (Q_RANK, WIDTH),
        "q_norm.weight": (Q_RANK,),
        "wq_b.weight": (2 * HEAD, Q_RANK),
        "wkv.weight": (HEAD, WIDTH),
        "kv_norm.weight": (HEAD,),
        "wo_a.weight": (2 * O_RANK, HEAD),
        "wo_b.weight": (WIDTH, 2 * O_RANK),
        "attn_sink": (2,),
    }


def index_shapes() -> dict[str, tuple[int, ...]]:
    return {
        "indexer.wq_b.weight": (3 * INDEX, Q_RANK),
        "indexer.weights_proj.weight": (3, WIDTH),
    }


def weights_of_v4(ratio: int, seed: int = 0) -> v4.Weights:
    shapes, lanes = core_shapes(), 2 if ratio == 4 else 1
    if ratio:
        shapes |= compressor_shapes("compressor.", HEAD, ratio, lanes)
    if ratio == 4:
        shapes |= index_shapes() | compressor_shapes("indexer.compressor.", INDEX, ratio, lanes)
    return draw(seed, shapes)


def compressor_shapes(prefix: str, width: int, ratio: int, lanes: int):
    return {
        f"{prefix}ape": (ratio, lanes * width),
        f"{prefix}wkv.weight": (lanes * width, WIDTH),
        f"{prefix}wgate.weight": (lanes * width, WIDTH),
        f"{prefix}norm.weight": (width,),
    }


def weights_of_v41(layer: int) -> v4.Weights:
    """Only what a layer of its kind has: a reuse layer has no compressor, ratio 1 no gate."""
    shapes = core_shapes()
    if layer in PLAN.index_sources:
        shapes |= index_shapes()
    if layer in PLAN.kv_sources:
        shapes |= {"compressor.wkv.weight": (HEAD, WIDTH), "compressor.norm.weight": (HEAD,)}
        shapes |= {"indexer.wk.weight": (INDEX, HEAD), "indexer.k_norm.weight": (INDEX,)}
        if PLAN.ratios[layer] > 1:
            shapes["compressor.wgate.weight"] = (HEAD, WIDTH)
    return draw(layer, shapes)


def inputs(count: int = 1, tokens: int = TOKENS) -> list[np.ndarray]:
    return list(np.random.default_rng(5).normal(size=(count, tokens, WIDTH)))


def moved(before, after) -> list[int]:
    """Rows that differ."""
    return [
        i for i, (a, b) in enumerate(zip(before, after, strict=True)) if not np.array_equal(a, b)
    ]


def nudge(x: np.ndarray, token: int) -> np.ndarray:
    changed = x.copy()
    changed[token] += 0.5
    return changed


# Tables by hand.


@pytest.mark.parametrize(
    ("ratio", "visible"),
    [
        (4, {0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 6: 1, 7: 2, 11: 3, 2047: 512, 2051: 513}),
        (128, {0: 0, 126: 0, 127: 1, 128: 1, 255: 2, 256: 2}),
        (2, {0: 0, 1: 1, 2: 1, 3: 2}),
        (1, {0: 1, 1: 2, 99: 100}),
        (0, {0: 0, 500: 0}),
    ],
)
def test_which_entries_a_query_sees(ratio, visible):
    assert {p: v4.count_visible(p, ratio) for p in visible} == visible


def test_slots_of_an_entry():
    assert v4.slots(0, 4) == [(0, 1, 0), (1, 1, 1), (2, 1, 2), (3, 1, 3)]
    assert [t for t, _, _ in v4.slots(1, 4)] == list(range(8))
    assert v4.slots(2, 4) == [(4 + j, 0, j) for j in range(4)] + [(8 + j, 1, j) for j in range(4)]
    assert [t for t, _, _ in v4.slots(3, 4)] == list(range(8, 16))
    assert v4.slots(2, 3) == [(6, 0, 0), (7, 0, 1), (8, 0, 2)]


def test_yarn_of_the_released_values():
    plain = v4.plain_frequencies(64, 160_000.0)
    got = v4.yarn_frequencies(dataclasses.replace(SIZES, rope_dims=64, yarn_original=65_536))
    factors = [g / p for g, p in zip(got, plain, strict=True)]
    assert factors[:16] == [1.0] * 16
    np.testing.assert_allclose(factors[25:], 1 / 16, rtol=1e-12)
    np.testing.assert_allclose(factors[15:26], np.linspace(1, 1 / 16, 11), rtol=1e-12)
    assert v4.frequencies(dataclasses.replace(SIZES, rope_dims=4), 0) == [1.0, 0.01]


def test_rotation_turns_neighbours_of_the_last_channels():
    got = v4.rotate(np.array([9.0, 1.0, 0.0, 0.0, 2.0]), 1, [math.pi / 2, math.pi])
    np.testing.assert_allclose(got, [9, 0, 1, 0, -2], atol=1e-12)
    np.testing.assert_allclose(
        v4.rotate(got, 1, [math.pi / 2, math.pi], inverse=True), [9, 1, 0, 0, 2], atol=1e-12
    )


def test_pooling_against_an_einsum():
    weights, (x,) = v4.part(weights_of_v4(4), "compressor."), inputs()
    kv = x @ weights["wkv.weight"].T
    gate = x @ weights["wgate.weight"].T + weights["ape"][np.arange(TOKENS) % 4]
    values = np.concatenate([kv[4:8, :HEAD], kv[8:12, HEAD:]])
    scores = np.exp(np.concatenate([gate[4:8, :HEAD], gate[8:12, HEAD:]]))
    np.testing.assert_allclose(
        v4.pool(x, weights, 2, 4), (values * scores).sum(0) / scores.sum(0), rtol=1e-12
    )
    first = np.exp(gate[:4, HEAD:])  # nothing lies before the first window
    np.testing.assert_allclose(
        v4.pool(x, weights, 0, 4), (kv[:4, HEAD:] * first).sum(0) / first.sum(0), rtol=1e-12
    )


def test_a_sink_takes_weight_and_gives_nothing():
    query, entry = np.array([2.0, 0.0, 0.0, 0.0]), np.array([1.0, 0.0, 4.0, 0.0])
    np.testing.assert_allclose(v4.attend(query, [entry], 1.0), entry / 2)  # logit 2 / sqrt(4)
    np.testing.assert_allclose(v4.attend(query, [entry], -1e4), entry)


def test_groups_of_heads_have_their_own_block():
    weights = {
        "wo_a.weight": np.array([[1.0, 0], [0, 1], [2, 0], [0, 2]]),
        "wo_b.weight": np.eye(4),
    }
    heads = [np.array([1.0, 2.0]), np.array([3.0, 4.0])]
    assert v4.project_out(heads, weights, SIZES).tolist() == [1, 2, 6, 8]


def test_equals_go_to_the_lower_index():
    assert v4.best([0.0, 3.0, 0.0, 0.0, 5.0], 3) == [0, 1, 4]
    assert v4.best([1.0], 3) == [0]
    assert v4.best([], 3) == []


def test_index_scores_rectify_each_head_before_the_weights():
    queries = [np.array([1.0]), np.array([-1.0])]
    assert v4.index_score(queries, [2.0, -7.0], np.array([3.0])) == 6.0
    assert v4.index_score(queries, [2.0, -7.0], np.array([-3.0])) == -21.0


def test_the_newest_block_is_always_picked():
    scores = [9.0, 0, 0, 5, 0, 0, 7, 0, 0, -4]
    assert v41.best_blocks(scores, 3, 2) == [0, 3]  # the forced one counts
    assert v41.best_blocks(scores, 3, 1) == [3]
    assert v41.best_blocks(scores, 3, 9) == [0, 1, 2, 3]
    assert v41.best_blocks([], 3, 2) == []


@pytest.mark.parametrize(
    ("magnitudes", "dtype"),
    [(v4.FP8, ml_dtypes.float8_e4m3fn), (v4.FP4, ml_dtypes.float4_e2m1fn)],
)
def test_rounding_is_that_of_the_formats(magnitudes, dtype):
    codes = np.arange(len(magnitudes), dtype=np.uint8).view(dtype).astype(np.float64)
    np.testing.assert_array_equal(codes, magnitudes)
    halfway = (codes[:-1] + codes[1:]) / 2
    values = np.concatenate([codes, halfway, halfway * 1.001, -halfway])
    np.testing.assert_array_equal(
        [v4.to_nearest(float(v), magnitudes) for v in values],
        values.astype(np.float32).astype(dtype).astype(np.float64),
    )


def test_hadamard_keeps_products():
    a, b = np.random.default_rng(0).normal(size=(2, 8))
    np.testing.assert_allclose(v4.hadamard(a) @ v4.hadamard(b), a @ b, rtol=1e-12)
    np.testing.assert_allclose(v4.hadamard(v4.hadamard(a)), a, rtol=1e-12)


# Causality.


@pytest.mark.parametrize("token", range(12))
def test_entries_that_a_token_feeds(token):
    (x,) = inputs(tokens=12)
    for ratio, expected in ((4, {token // 4, token // 4 + 1} & {0, 1, 2}), (3, {token // 3})):
        weights = v4.part(weights_of_v4(ratio), "compressor.")
        before, after = (v4.compress(case, weights, SIZES, ratio) for case in (x, nudge(x, token)))
        assert len(before) == 12 // ratio
        assert set(moved(before, after)) == expected


@pytest.mark.parametrize("ratio", [0, 3, 4])
def test_v4_looks_only_back(ratio):
    weights, (x,) = weights_of_v4(ratio), inputs()
    before = v4.attention(x, weights, SIZES, ratio)
    assert before.shape == x.shape and np.isfinite(before).all()
    for token in range(TOKENS):
        rows = moved(before, v4.attention(nudge(x, token), weights, SIZES, ratio))
        assert rows[0] == token
        if not ratio:  # the raw window is exactly so many tokens, the query's own included
            assert rows == list(range(token, min(token + SIZES.window, TOKENS)))


def test_a_window_alone_does_not_care_where_it_lies():
    """Undone rotation: without it the output would turn with the position."""
    weights, (x,) = weights_of_v4(0), inputs()
    whole = v4.attention(x, weights, SIZES, 0)
    np.testing.assert_allclose(v4.attention(x[-4:], weights, SIZES, 0)[-1], whole[-1], rtol=1e-9)


def test_picks_are_some_of_the_visible_entries():
    (x,) = inputs(tokens=20)
    picks = v4.select(x, weights_of_v4(4), SIZES, 4)
    assert [len(p) for p in picks] == [min((i + 1) // 4, 2) for i in range(20)]
    assert all(e < (i + 1) // 4 for i, p in enumerate(picks) for e in p)
    assert any(p != [0, 1] for p in picks[11:])


def test_v4_normalises_each_head_and_v41_does_not():
    (x,) = inputs()
    scale = np.repeat([3.0, 0.5], HEAD)[:, None]
    weights = weights_of_v4(0)
    scaled = weights | {"wq_b.weight": weights["wq_b.weight"] * scale}
    tiny = dataclasses.replace(SIZES, eps=0.0)
    np.testing.assert_allclose(
        v4.attention(x, weights, tiny, 0), v4.attention(x, scaled, tiny, 0), rtol=1e-9
    )
    both = [
        v41.attention_of_layer(x, w, SIZES_41, PLAN, 0, v41.Shared()) for w in (weights, scaled)
    ]
    assert not np.allclose(*both)


def test_simulated_rounding_changes_little_but_something():
    weights, (x,) = weights_of_v4(4), inputs()
    rounded = v4.attention(x, weights, dataclasses.replace(SIZES, simulate=True), 4)
    exact = v4.attention(x, weights, dataclasses.replace(SIZES, index_topk=99), 4)
    every = dataclasses.replace(SIZES, simulate=True, index_topk=99)
    error = np.abs(v4.attention(x, weights, every, 4) - exact).max() / np.abs(exact).max()
    assert 1e-4 < error < 0.1
    assert np.isfinite(rounded).all()


# V4.1's layers.


def run_v41(xs, **changes):
    weights = [weights_of_v41(layer) for layer in range(len(PLAN.ratios))]
    return v41.attention_of_layers(xs, weights, dataclasses.replace(SIZES_41, **changes), PLAN)


def test_v41_looks_only_back_through_all_that_is_shared():
    xs = inputs(6)
    before, _ = run_v41(xs)
    for token in (0, 5, 9):
        for source, readers in {1: {1, 2}, 2: {2}, 3: {3, 4, 5}, 4: {4}, 0: {0}}.items():
            after, _ = run_v41([*xs[:source], nudge(xs[source], token), *xs[source + 1 :]])
            changed = [moved(b, a) for b, a in zip(before, after, strict=True)]
            assert {i for i, rows in enumerate(changed) if rows} == readers
            assert all(rows[0] >= token for rows in changed if rows)


def test_a_reader_sees_an_entry_of_two_from_its_second_token():
    """Where everything is picked, a reader has nothing of its source but the entries."""
    xs = inputs(6)
    before, _ = run_v41(xs, index_topk=99)
    for token, first in ((4, 5), (5, 5), (6, 7)):
        after, _ = run_v41([xs[0], nudge(xs[1], token), *xs[2:]], index_topk=99)
        assert moved(before[2], after[2])[0] == first


def test_picks_are_handed_on_and_later_ones_keep_to_the_blocks():
    picks = run_v41(inputs(6))[1]
    assert picks[0] == [[]] * TOKENS
    assert picks[1] == picks[2] and picks[3] == picks[4] and picks[3] != picks[5]
    for layer in (1, 3, 5):
        counts = [min((p + 1) // PLAN.ratios[layer], 2) for p in range(TOKENS)]
        assert [len(p) for p in picks[layer]] == counts
        assert all(p == sorted(p) for p in picks[layer])
    shared = v41.Shared()
    xs = inputs(6)
    for layer in range(6):
        v41.attention_of_layer(xs[layer], weights_of_v41(layer), SIZES_41, PLAN, layer, shared)
    assert any(len(b) == 2 and b != [0, 1] for b in shared.blocks)
    for p, blocks in enumerate(shared.blocks):
        assert p // PLAN.block_size in blocks  # the newest entry's
        assert {e // PLAN.block_size for e in shared.picks[p]} <= set(blocks)


def test_blocks_narrow_what_the_last_source_finds():
    wide = dataclasses.replace(PLAN, block_topk=99)
    xs, weights = inputs(6), [weights_of_v41(i) for i in range(6)]
    _, free = v41.attention_of_layers(xs, weights, SIZES_41, wide)
    _, narrow = v41.attention_of_layers(xs, weights, SIZES_41, PLAN)
    assert free[3] == narrow[3] and free[5] != narrow[5]


def test_one_token_of_ratio_one_is_projected_and_normalised_alone():
    weights, (x,) = v4.part(weights_of_v41(3), "compressor."), inputs()
    got = v41.latents(x, weights, SIZES_41, 1)
    expected = x @ weights["wkv.weight"].T
    expected /= np.sqrt((expected**2).mean(-1, keepdims=True))
    np.testing.assert_allclose(got, expected * weights["norm.weight"], rtol=1e-12)


def test_two_tokens_share_by_channel_and_an_odd_last_one_waits():
    weights, (x,) = v4.part(weights_of_v41(1), "compressor."), inputs(tokens=7)
    got = v41.latents(x, weights, SIZES_41, 2)
    assert len(got) == 3
    kv, gate = (x @ weights[f"{n}.weight"].T for n in ("wkv", "wgate"))
    first = 1 / (1 + np.exp(gate[3] - gate[2]))
    pooled = first * kv[2] + (1 - first) * kv[3]
    pooled /= np.sqrt((pooled**2).mean())
    np.testing.assert_allclose(got[1], pooled * weights["norm.weight"], rtol=1e-12)
