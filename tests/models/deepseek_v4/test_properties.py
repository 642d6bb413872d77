# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What holds of any tokens, lengths, cuts and drafts, at one compiled shape a function."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from phasejax.models.deepseek_v4.compressor import WindowCompressor
from tests.golden import filled
from tests.models.deepseek_v4.streams import (
    CONFIG,
    LENGTH,
    TOKENS,
    V41,
    WIDTH,
    assert_close,
    feed,
    feed_cuts,
    new_cache,
    whole,
)

DECODERS = {"v4": (CONFIG, LENGTH), "v41": (V41, 24)}  # and the tokens that are enough to tell
BOTH = pytest.mark.parametrize("name", DECODERS)


def few(examples: int):
    """Each example runs a decoder; the same ones every time."""
    return hypothesis.settings(max_examples=examples, deadline=None, derandomize=True)


@functools.cache
def decoder(name: str):
    """The model, its tokens, and the logits of one call over all of them."""
    config, length = DECODERS[name]
    model, tokens = filled.model(config), TOKENS[:, :length]
    return model, tokens, np.asarray(whole(model, jnp.asarray(tokens)))


@BOTH
@few(6)
@hypothesis.given(data=st.data())
def test_a_token_changes_nothing_before_it_nor_in_other_rows(name, data):
    model, tokens, wanted = decoder(name)
    t = data.draw(st.integers(0, tokens.shape[1] - 1), label="token")
    row = data.draw(st.integers(0, 1), label="row")
    changed = tokens.copy()
    changed[row, t:] = 63 - changed[row, t:]
    got = np.asarray(whole(model, jnp.asarray(changed)))
    assert_close([got[1 - row], got[row, :t]], [wanted[1 - row], wanted[row, :t]], wanted)
    assert np.abs(got[row, t] - wanted[row, t]).max() > 1e-3


# Tokens of each row in a step, and wrong ones after them, that the row takes back.
STEPS = st.lists(st.tuples(*[st.tuples(st.integers(0, WIDTH), st.integers(0, 5))] * 2), max_size=9)


@BOTH
@few(5)
@hypothesis.given(start=st.integers(0, LENGTH - 8), steps=STEPS)
def test_any_cuts_of_ragged_rows_with_drafts_equal_one_call(name, start, steps):
    model, tokens, wanted = decoder(name)
    start %= tokens.shape[1] - 8
    cache, fed = new_cache(model), np.asarray([start, start])
    if start:
        got, cache = feed_cuts(model, cache, start)
        assert_close(got, wanted[:, :start], wanted)
    for counts in steps:
        right, wrong = np.minimum(np.transpose(counts), tokens.shape[1] - fed)
        wrong = np.minimum(wrong, WIDTH - right)
        ends = list(zip(fed, fed + right, fed + right + wrong, strict=True))
        rows = zip(tokens, tokens[:, ::-1], ends, strict=True)
        got, cache = feed(
            model, cache, *(np.append(row[a:b], other[: c - b]) for row, other, (a, b, c) in rows)
        )
        got = [logits[:n] for logits, n in zip(got, right, strict=True)]
        assert_close(got, [y[a:b] for y, (a, b, _) in zip(wanted, ends, strict=True)], wanted)
        cache, fed = take_back(cache, jnp.asarray(wrong, jnp.int32)), fed + right
        np.testing.assert_array_equal(cache.length, fed)


@jax.jit
def take_back(cache, counts):
    return cache.rollback(counts)


@pytest.mark.parametrize("padding", ["left", "right"])
@few(4)
@hypothesis.given(data=st.data())
def test_padding_changes_nothing(padding, data):
    model, tokens, wanted = decoder("v4")
    lengths = [data.draw(st.integers(1, LENGTH), label="length") for _ in tokens]
    real = [slice(LENGTH - n, LENGTH) if padding == "left" else slice(n) for n in lengths]
    padded = np.full_like(tokens, data.draw(st.integers(0, 63), label="padding"))
    for b, n in enumerate(lengths):
        padded[b, real[b]] = tokens[b, :n]
    got = np.asarray(with_lengths(model, jnp.asarray(padded), jnp.asarray(lengths), padding))
    rows = [got[b, where] for b, where in enumerate(real)]
    assert_close(rows, [wanted[b, :n] for b, n in enumerate(lengths)], wanted)


@functools.partial(nnx.jit, static_argnums=3)
def with_lengths(model, tokens, lengths, padding):
    return model(tokens, lengths=lengths, padding=padding)


@pytest.mark.parametrize("ratio", [1, 2, 4, 128])
def test_entries_of_any_length(ratio):
    """There are T // ratio of them, and a token changes only those whose window it lies in."""
    compressor = WindowCompressor(CONFIG if ratio > 2 else V41, ratio, 8, rngs=nnx.Rngs(0))
    most = 258
    x = np.random.default_rng(0).normal(size=(2, most, CONFIG.width)).astype(np.float32)
    at_once = nnx.jit(lambda m, x: m(x))
    append = nnx.jit(lambda m, x, n: m.append(m.init_state(2), x, n)[1])
    keys = np.asarray(at_once(compressor, jnp.asarray(x)).key)
    assert keys.shape[1] == most // ratio

    @few(8)
    @hypothesis.given(tokens=st.integers(1, most), data=st.data())
    def check(tokens, data):
        t = data.draw(st.integers(0, tokens - 1), label="token")
        perturbed = x.copy()
        perturbed[0, t] += 1
        entries = append(compressor, jnp.asarray(perturbed), jnp.full(2, tokens))
        valid, key = np.asarray(entries.valid), np.asarray(entries.key)
        assert valid.sum(-1).tolist() == [tokens // ratio] * 2
        count = tokens // ratio
        assert np.abs(key[1, :count] - keys[1, :count]).max(initial=0) < 1e-5
        changed = np.abs(key[0, :count] - keys[0, :count]).max((1, 2), initial=0) > 1e-4
        own = {t // ratio, t // ratio + 1} if ratio == 4 else {t // ratio}
        assert set(np.flatnonzero(changed)) == {e for e in own if e < count}

    check()
