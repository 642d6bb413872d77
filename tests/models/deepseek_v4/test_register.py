# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""One test for each documented fault of public DeepSeek-V4 code that can be had here.

The numbers are those of the project's register of such faults; `plant_faults.py` beside this puts
them in and sees the test go red.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pallas_kernels.index_topk.reference import index_scores
from phasejax.checkpoints.deepseek_v4_config import fp8_block
from phasejax.checkpoints.quantization import E4M3, dequantize
from phasejax.models.deepseek_v4 import quantization
from phasejax.models.deepseek_v4.attention import Attention, Shared
from phasejax.models.deepseek_v4.compressor import WindowCompressor
from phasejax.models.deepseek_v4.hyper_connections import merge
from phasejax.models.deepseek_v4.indexer import choose, visible_entries
from phasejax.models.deepseek_v4.moe import sqrt_softplus
from phasejax.models.deepseek_v4.presets import preset
from phasejax.models.deepseek_v4.quantization import hadamard, round_entry
from tests.golden import filled
from tests.models.deepseek_v4.streams import (
    CONFIG,
    TOKENS,
    V41,
    WIDTH,
    assert_close,
    feed,
    feed_cuts,
    new_cache,
    step,
    whole,
)


@pytest.fixture(scope="module")
def model():
    return filled.model(CONFIG)


@pytest.fixture(scope="module")
def wanted(model):
    return np.asarray(whole(model, jnp.asarray(TOKENS)))


def entries_of(cache, layer=0):
    return np.asarray(cache.layers[layer].compressed.entries)


# One attention layer, for what a whole decoder would hide.


def attention(layer=0, **changes):
    """An attention layer with the golden weights, as a jitted function of hidden states."""
    config = dataclasses.replace(CONFIG, **changes)
    module = filled.model(config).blocks[layer].attention

    @jax.jit
    def call(hidden):
        position = jnp.arange(hidden.shape[1])[None]
        return module(hidden, position, Shared())[0]

    return call


def hidden(tokens, batch=1, seed=0):
    return np.random.default_rng(seed).normal(size=(batch, tokens, 32)).astype(np.float32)


def changed_by(call, tokens):
    """Boolean [T, T]: whether output p changes when token t does, one batch row a token."""
    x = np.repeat(hidden(tokens), tokens + 1, axis=0)
    for t in range(tokens):
        x[t, t] += 1.0
    y = np.asarray(call(jnp.asarray(x)))
    return np.abs(y[:-1] - y[-1:]).max(-1) > 1e-6


@pytest.mark.parametrize("topk", [1, 512])
def test_01_02_prefill_does_not_see_the_future(topk):
    """1: no column leaks; 2: entry e shows from p = 4 e + 3 on, so with top-1 as with all."""
    changed = changed_by(attention(index_topk=topk, local_window=2), 13)
    assert not changed[np.triu_indices(13, 1)[::-1]].any()  # rows t, columns p < t


def test_02_entries_show_with_their_last_token():
    visible = np.asarray(visible_entries(jnp.arange(13), 4))
    np.testing.assert_array_equal(visible, [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3])
    scores = jnp.asarray([[3.0, 2.0, 9.0]] * 13)
    picks = np.asarray(choose(scores, jnp.asarray(visible), 2))
    assert [sorted(set(row) - {-1}) for row in picks.tolist()] == [
        [], [], [], [0], [0], [0], [0], [0, 1], [0, 1], [0, 1], [0, 1], [0, 2], [0, 2],
    ]  # fmt: skip


def test_03_tokens_of_one_step_see_their_own_entries(model, wanted):
    _, cache = feed_cuts(model, new_cache(model), 2)
    got, _ = feed(model, cache, TOKENS[0, 2:4], TOKENS[1, 2:4])
    assert_close(got, wanted[:, 2:4], wanted)


def test_04_decoding_keeps_the_overlap_lane(model):
    _, at_once = feed_cuts(model, new_cache(model), 8)
    _, cache = feed_cuts(model, new_cache(model), 4, 5, 6, 7, 8)
    np.testing.assert_allclose(entries_of(cache)[:, 1], entries_of(at_once)[:, 1], atol=1e-6)


def test_05a_compressed_branch_is_on_in_prefill():
    changed = changed_by(attention(local_window=2, index_topk=512), 13)
    assert changed[0, 8:].all()  # token 0 is far outside the raw window


def test_05b_far_positions_match_a_scalar_loop():
    """Wrong frequencies or unrotated entries show far from the start; see test_references."""
    frequencies = CONFIG.rotary(0).frequencies()
    assert CONFIG.rotary(0).theta == 160_000 and frequencies[0] == 1
    np.testing.assert_allclose(frequencies[1], 160_000**-0.5 / 16, rtol=1e-6)


def test_05c_both_pools_have_a_row_for_every_stride():
    """Chunks of 13 tokens; every count is T // 4, in the main and in the indexer's pool."""
    for channels in (16, 8):
        compressor = WindowCompressor(CONFIG, 4, channels, rngs=nnx.Rngs(0))
        state, closed = compressor.init_state(1), 0
        append = nnx.jit(lambda m, s, x: m.append(s, x))
        for chunk in range(1, 8):
            state, entries = append(compressor, state, jnp.asarray(hidden(13, seed=chunk)))
            closed += int(entries.valid.sum())
            assert closed == 13 * chunk // 4 == int(state.length[0]) // 4


def test_05d_index_scores_are_sums_of_positive_parts():
    """No sigmoid, no mean over heads, and a weight may be negative."""
    q, k, weight = hidden(2)[0, :, :6].reshape(4, 3), hidden(5, seed=1)[0, :, :3], [1, 2, -1, 0.5]
    wanted = [sum(w * max(float(h @ e), 0) for w, h in zip(weight, q, strict=True)) for e in k]
    got = index_scores(jnp.asarray(q), jnp.asarray(weight), jnp.asarray(k))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_05e_13_23_a_new_stream_knows_nothing_of_another_one(model, wanted):
    """5e, 23: after a long prompt, a prompt of 3 tokens and a decoded one; 13: nor its window."""
    feed_cuts(model, new_cache(model), 9)
    got, _ = feed_cuts(model, new_cache(model), 3, 4, 8)
    assert_close(got, wanted[:, :8], wanted)


def test_06_extension_counts_positions_once(model, wanted):
    tokens = jnp.asarray(TOKENS[:, :130])
    _, cache = step(model, tokens, new_cache(model), jnp.full(2, 130, jnp.int32))
    got, _ = feed(model, cache, TOKENS[0, 130:135], TOKENS[1, 130:135])
    assert_close(got, wanted[:, 130:135], wanted)


def test_07_tokens_within_a_window_write_no_entry(model):
    _, cache = feed_cuts(model, new_cache(model), 4)
    before = entries_of(cache)
    for token in range(4, 7):
        _, cache = feed_cuts(model, cache, token + 1)
        np.testing.assert_array_equal(entries_of(cache), before)
    _, cache = feed_cuts(model, cache, 8)
    changed = np.abs(entries_of(cache) - before).max((0, 2)) > 0
    assert np.flatnonzero(changed).tolist() == [1]


@pytest.mark.parametrize("tokens", [3, 4, 5])
def test_08_around_one_full_window(model, wanted, tokens):
    got, cache = feed_cuts(model, new_cache(model), tokens)
    assert_close(got, wanted[:, :tokens], wanted)
    assert (np.abs(entries_of(cache)).max((0, 2)) > 0).sum() == tokens // 4


def test_09_17_rows_of_other_lengths(model, wanted):
    """9: 12 and 11 tokens in one batch; 17: neither length is a multiple of 4 in the next step."""
    got, cache = feed(model, new_cache(model), TOKENS[0, :12], TOKENS[1, :11])
    assert_close(got, [wanted[0, :12], wanted[1, :11]], wanted)
    got, cache = feed(model, cache, TOKENS[0, 12:19], TOKENS[1, 11:13])
    assert_close(got, [wanted[0, 12:19], wanted[1, 11:13]], wanted)
    counts = (np.abs(entries_of(cache)).max(-1) > 0).sum(-1)
    assert counts.tolist() == [19 // 4, 13 // 4]


def test_10_drafts_are_taken_back_after_a_partial_accept(model, wanted):
    """At p = 5 three drafts cross p = 7; the first is right, two are not."""
    _, cache = feed_cuts(model, new_cache(model), 6)
    drafts = [[row[6], 63 - row[7], 63 - row[8]] for row in TOKENS]
    _, cache = feed(model, cache, *drafts)
    got, _ = feed_cuts(model, cache.rollback(2), 8, 16)
    assert_close(got, wanted[:, 7:16], wanted)


@pytest.mark.parametrize("start", [5, 122])
def test_11_25_a_wrong_tail_leaves_no_trace(model, wanted, start):
    """Ten wrong tokens over a boundary, more than the raw window holds, then the right ones."""
    _, cache = feed_cuts(model, new_cache(model), start)
    wrong = [63 - row[start : start + 10] for row in TOKENS]
    _, cache = feed(model, cache, *wrong)
    got, _ = feed_cuts(model, cache.rollback(10), start + 12)
    assert_close(got, wanted[:, start : start + 12], wanted)


def test_11_rows_are_taken_back_apart(model, wanted):
    _, cache = feed_cuts(model, new_cache(model), 7)
    wrong = [63 - row[7:10] for row in TOKENS]
    _, cache = feed(model, cache, wrong[0], wrong[1][:1])
    cache = cache.rollback(jnp.asarray([3, 1]))
    got, _ = feed_cuts(model, cache, 12)
    assert_close(got, wanted[:, 7:12], wanted)


def test_12_windows_are_pooled_before_the_state_moves_on(model, wanted):
    """One step holds p = 7 and p = 8, and one closes three windows."""
    got, cache = feed_cuts(model, new_cache(model), 5, 9, 21)
    assert_close(got, wanted[:, :21], wanted)


@pytest.mark.parametrize("cut", [3, 4, 6, 126])
def test_13_14_a_prefix_is_used_again_at_any_cut(model, wanted, cut):
    _, cache = feed_cuts(model, new_cache(model), cut)
    kept = cache.snapshot()
    other = [63 - row[cut : cut + 9] for row in TOKENS]
    feed(model, cache, *other)
    for _ in range(2):
        got, _ = feed_cuts(model, kept, cut + 9)
        assert_close(got, wanted[:, cut : cut + 9], wanted)


@pytest.mark.parametrize("padding", ["left", "right"])
def test_15_padding_is_not_pooled(model, wanted, padding):
    lengths = jnp.asarray([3, 10], jnp.int32)
    tokens, got = np.full((2, WIDTH), 9, np.int32), []
    for b, n in enumerate((3, 10)):
        where = slice(WIDTH - n, WIDTH) if padding == "left" else slice(0, n)
        tokens[b, where] = TOKENS[b, :n]
    call = nnx.jit(lambda m, t, c, n: m(t, cache=c, lengths=n, padding=padding))
    logits, cache = call(model, jnp.asarray(tokens), new_cache(model), lengths)
    for b, n in enumerate((3, 10)):
        rows = np.asarray(logits[b])
        got.append(rows[WIDTH - n :] if padding == "left" else rows[:n])
    assert_close(got, [wanted[0, :3], wanted[1, :10]], wanted)
    got, _ = feed(model, cache, TOKENS[0, 3:9], TOKENS[1, 10:12])
    assert_close(got, [wanted[0, 3:9], wanted[1, 10:12]], wanted)


def test_16_rows_without_entries_are_finite_as_are_gradients():
    graph, state = nnx.split(filled.model(CONFIG))
    params, rest = nnx.split_state(state, nnx.Param, ...)

    @jax.jit
    def loss(params):
        return jnp.square(nnx.merge(graph, params, rest)(jnp.asarray(TOKENS[:, :9]))).mean()

    value, gradients = jax.jit(jax.value_and_grad(loss))(params)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


def test_16_vanished_routing_scores_have_finite_gradients():
    value, gradient = jax.value_and_grad(lambda x: sqrt_softplus(x).sum())(jnp.asarray([-300.0]))
    assert value == 0 and np.isfinite(gradient).all()


def test_18_the_list_of_ratios_may_go_on_with_a_draft_layer():
    """The draft layer's ratio is at index num_layers, and its rotation has no YaRN."""
    config = preset("deepseek_v4_pro")
    assert config.ratio(config.num_layers) == 0 and config.ratio(1) == 128
    rotary = config.rotary(config.num_layers)
    assert rotary.theta == 10_000 and rotary.yarn is None


def test_19_streams_stand_at_positions_of_their_own(model, wanted):
    """One at p = 3, which closes a window, and one at p = 4, which does not."""
    _, cache = feed(model, new_cache(model), TOKENS[0, :3], TOKENS[1, :4])
    got, cache = feed(model, cache, TOKENS[0, 3:4], TOKENS[1, 4:5])
    assert_close(got, [wanted[0, 3:4], wanted[1, 4:5]], wanted)
    assert (np.abs(entries_of(cache)).max(-1) > 0).sum(-1).tolist() == [1, 1]


@pytest.mark.parametrize("tokens", [20, 21])
def test_20_a_pending_token_survives_the_prefill(tokens):
    """V4.1's windows of 2 (and of 1), shared entries and picks, an even and an odd prefill."""
    model = filled.model(V41)
    wanted = np.asarray(whole(model, jnp.asarray(TOKENS[:, :24])))
    got, _ = feed_cuts(model, model.init_cache(2, 30), tokens, 22, 23, 24)
    assert_close(got, wanted, wanted)


def test_21_prefill_and_decode_in_one_batch(model, wanted):
    _, cache = feed(model, new_cache(model), TOKENS[0, :11], [])
    got, _ = feed(model, cache, TOKENS[0, 11:12], TOKENS[1, :7])
    assert_close(got, [wanted[0, 11:12], wanted[1, :7]], wanted)


def test_22_released_models_have_no_attention_factor():
    assert preset("deepseek_v4_flash").yarn.attention_factor == 1


def test_22_blocks_of_fp8_are_as_large_as_the_config_says():
    """V4.1's are 32 x 32; read in blocks of 128, most scales would be left over."""
    assert fp8_block({"quantization_config": {"weight_block_size": [32, 32]}}) == (32, 32)
    weight = np.ones((64, 32), E4M3)
    scale = np.asarray([[1.0], [2.0]], np.float32)
    got = dequantize(weight, scale, np.dtype(np.float32), fp8_block=(32, 32))
    np.testing.assert_array_equal(got, np.repeat([[1.0], [2.0]], 32, 0).repeat(32, 1))
    with pytest.raises(ValueError, match=r"blocks of \(128, 128\)"):
        dequantize(weight, scale, np.dtype(np.float32))


def test_22_streams_mix_over_the_first_index():
    rng = np.random.default_rng(0)
    streams, mixing = rng.normal(size=(1, 1, 3, 2)), rng.uniform(size=(1, 1, 3, 3))
    output, write = rng.normal(size=(1, 1, 2)), rng.uniform(size=(1, 1, 3))
    got = np.asarray(
        merge(*(jnp.asarray(x, jnp.float32) for x in (streams, output, write, mixing)))
    )
    for k in range(3):
        for d in range(2):
            value = write[0, 0, k] * output[0, 0, d]
            for j in range(3):
                value += mixing[0, 0, j, k] * streams[0, 0, j, d]
            np.testing.assert_allclose(got[0, 0, k, d], value, rtol=1e-5)


def test_26_rotated_channels_are_not_rounded():
    x = jnp.asarray(hidden(1)[0, 0], jnp.float32).repeat(4)[None] * 1.2345
    before = np.asarray(x)
    rounded = np.asarray(round_entry(x, 64))
    np.testing.assert_array_equal(rounded[:, -64:], before[:, -64:])
    assert (rounded[:, :-64] != before[:, :-64]).any()
    np.testing.assert_array_equal(np.asarray(x), before)


def test_27_hadamard_on_both_sides_changes_no_score(monkeypatch):
    """I9: without the rounding to FP4 the indexer selects the same in either basis."""
    q, k = (jnp.asarray(hidden(3, seed=s)[0]) for s in (1, 2))
    np.testing.assert_allclose(hadamard(q) @ hadamard(k).T, q @ k.T, atol=1e-5)
    assert np.abs(hadamard(q) @ k.T - q @ k.T).max() > 0.1
    monkeypatch.setattr(quantization, "_round_groups", lambda x, *_: x)
    monkeypatch.setattr("phasejax.models.deepseek_v4.attention.round_entry", lambda x, _: x)
    x = jnp.asarray(hidden(40))
    sizes = dict(index_topk=3, head_dim=68, index_dim=32)  # whole groups
    rotated, plain = (np.asarray(attention(quantized=q, **sizes)(x)) for q in (True, False))
    np.testing.assert_allclose(rotated, plain, atol=1e-5 * np.abs(plain).max())


def test_ties_go_to_the_lower_index_whatever_the_sign_of_zero():
    scores = jnp.asarray([[-0.0, 0.0, 0.0, -1.0, 2.0]])
    picks = choose(scores, jnp.asarray([5]), 3)
    assert picks.tolist() == [[4, 0, 1]]


def test_position_biases_follow_the_slot_of_the_window(model):
    """I10: a stream that goes on at p = 6 pools with the third bias, not with the first."""
    compressor = model.blocks[0].attention.compressor
    x = jnp.asarray(hidden(12))
    state, _ = compressor.append(compressor.init_state(1), x[:, :6])
    _, later = compressor.append(state, x[:, 6:])
    at_once = compressor(x)
    np.testing.assert_allclose(later.key[0, :2], at_once.key[0, 1:3], atol=1e-6)


def test_a_window_reads_the_tokens_that_the_contract_says(model):
    """I2: token t changes the entries t // 4 and t // 4 + 1 alone; start and end say the same."""
    compressor = model.blocks[0].attention.compressor
    x = np.repeat(hidden(16), 17, axis=0)
    for t in range(16):
        x[t, t] += 1.0
    entries = nnx.jit(lambda m, x: m(x))(compressor, jnp.asarray(x))
    key = np.asarray(entries.key)[:, :, 0]
    changed = np.abs(key[:-1] - key[-1:]).max(-1) > 0
    for t in range(16):
        inside = (np.asarray(entries.start) <= t) & (t <= np.asarray(entries.end))
        np.testing.assert_array_equal(changed[t], inside)
        assert np.flatnonzero(inside).tolist() == [e for e in (t // 4, t // 4 + 1) if e < 4]


def test_an_indexed_selection_is_smaller_than_what_is_visible():
    """I7: the picks matter: with all entries the output is another one."""
    x = jnp.asarray(hidden(40))
    few, every = (np.asarray(attention(index_topk=k)(x)) for k in (2, 512))
    np.testing.assert_allclose(few[:, :11], every[:, :11], atol=1e-5)
    assert np.abs(few[:, 11:] - every[:, 11:]).max() > 1e-3


def test_bad_input_is_refused_before_anything_is_computed(model):
    cache = new_cache(model)
    with pytest.raises(ValueError, match="at least one"):
        model(jnp.zeros((2, 0), jnp.int32))
    with pytest.raises(ValueError, match="past the cache's max_length=160"):
        model(jnp.zeros((2, 161), jnp.int32), cache=cache)
    late = dataclasses.replace(cache, length=jnp.asarray([3, 158], jnp.int32))
    with pytest.raises(ValueError, match=r"Streams of \[3, 158\] tokens take \[3, 3\] more, past"):
        model(jnp.zeros((2, 3), jnp.int32), cache=late)
    with pytest.raises(ValueError, match="one length for each row"):
        model(jnp.zeros((2, 4), jnp.int32), lengths=jnp.asarray([4]))
    for lengths, message in (
        ([5, 1], r"lengths=\[5, 1\], but rows hold 4 tokens"),
        ([-1, 1], r"lengths=\[-1, 1\], but rows hold 4 tokens"),
        ([0, 4], r"lengths=\[0, 4\]: a prompt has at least one token"),
    ):
        with pytest.raises(ValueError, match=message):
            model(jnp.zeros((2, 4), jnp.int32), lengths=jnp.asarray(lengths))
    with pytest.raises(ValueError, match="3 rows"):
        model(jnp.zeros((3, 4), jnp.int32), cache=cache)
    with pytest.raises(ValueError, match="max_rollback"):
        cache.rollback(1)
    with pytest.raises(ValueError, match="max_length=0"):
        model.init_cache(2, 0)


def test_a_full_cache_is_loud_while_tracing(model):
    cache = dataclasses.replace(new_cache(model), length=jnp.asarray([159, 3], jnp.int32))
    got, _ = feed(model, cache, [1, 2], [1, 2])
    assert np.isnan(got[0]).all() and np.isfinite(got[1]).all()


def test_attention_layers_of_each_kind_hold_what_they_need():
    config = dataclasses.replace(CONFIG, compress_ratios=(0, 128), num_layers=2)
    raw, heavy = (Attention(config, layer, rngs=nnx.Rngs(0)) for layer in (0, 1))
    assert raw.compressor is None and raw.indexer is None
    assert heavy.compressor is not None and heavy.indexer is None
