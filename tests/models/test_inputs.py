# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What a decoder refuses to read, and what it reads as if it were not there."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import phasejax
from phasejax.models.decoder import Decoder
from phasejax.models.deepseek_v4.presets import preset
from phasejax.models.inputs import check_cache, check_tokens
from tests.golden import fill, filled
from tests.models.test_qwen3 import VOCABULARY, config_of

TINY = dataclasses.replace(  # as little to compile as has every kind of state
    preset("deepseek_v4_tiny"),
    vocab_size=VOCABULARY,
    num_layers=1,
    compress_ratios=(4,),
    streams=1,
    sinkhorn_iterations=1,
)
TOKENS = jnp.asarray(fill.tokens(6, VOCABULARY)).repeat(2, 0)
MODELS = {
    "deepseek_v4": lambda: filled.model(TINY),
    "qwen3": lambda: phasejax.Qwen3(config_of("w8s4"), rngs=nnx.Rngs(0)),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return MODELS[request.param]()


@nnx.jit(static_argnums=3)
def call(model, tokens, lengths, padding):
    return model(tokens, lengths=lengths, padding=padding)


@pytest.mark.parametrize(
    ("tokens", "lengths", "message"),
    [
        ([[1, 2]], None, r"tokens is list, but must be an array of integers \[batch, tokens\]"),
        (np.ones(3, int), None, r"tokens is int64\[3\], but"),
        (np.ones((1, 2, 3), int), None, r"tokens is int64\[1, 2, 3\], but"),
        (np.ones((1, 3)), None, r"tokens is float64\[1, 3\], but.*pass jnp.asarray"),
        (np.ones((1, 3), bool), None, r"tokens is bool\[1, 3\]"),
        (np.ones((0, 3), int), None, r"tokens of shape \(0, 3\) hold no token"),
        (TOKENS, [3, 6], r"lengths is list"),
        (TOKENS, np.ones(2), r"lengths is float64\[2\], but must be .* \[batch\]"),
        (TOKENS, np.asarray([True, True]), r"lengths is bool\[2\]"),
        (TOKENS, np.int32(3), r"lengths is int32\[\]"),
        (np.asarray([[1, VOCABULARY]]), None, f"tokens hold {VOCABULARY}, but vocab_size="),
        (np.asarray([[1, -1]]), None, rf"tokens hold -1.* choose tokens in 0..{VOCABULARY - 1}"),
        (np.asarray([[-1, 2, 3]]), np.asarray([2]), "tokens hold -1.*tell padding by lengths"),
    ],
)
def test_other_tokens_and_lengths_are_named(tokens, lengths, message):
    with pytest.raises(ValueError, match=message):
        check_tokens(tokens, lengths, "right", VOCABULARY, prompts=True)


def test_what_stands_in_padding_is_read_by_nothing(model):
    """Not even a token outside the vocabulary, which would be read as NaN."""
    lengths, wrong = jnp.asarray([3, 6]), jnp.full((2, 6), VOCABULARY).at[:, 1].set(-1)
    real = jnp.arange(6) < lengths[:, None]
    for padding in ("right", "left"):
        where = real if padding == "right" else real[:, ::-1]
        filled_up = jnp.where(where, TOKENS, wrong)
        model.check_input(filled_up, None, lengths, padding)
        got = np.asarray(call(model, filled_up, lengths, padding))
        plain = np.asarray(call(model, jnp.where(where, TOKENS, 0), lengths, padding))
        np.testing.assert_array_equal(got[where], plain[where])
        assert np.isfinite(got[where]).all()


@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_a_token_outside_the_vocabulary_is_not_a_number_while_tracing(model, token):
    with pytest.raises(ValueError, match=f"tokens hold {token}"):
        model(TOKENS.at[0, 2].set(token))
    logits = np.asarray(call(model, TOKENS.at[0, 2].set(token), jnp.asarray([6, 6]), "right"))
    assert np.isnan(logits[0, 2]).all()
    assert np.isfinite(logits[1]).all()


def test_narrow_integers_are_whole_numbers_too(model):
    """Positions in 8 bits, or a difference of unsigned ones, would overflow."""
    tokens = jax.ShapeDtypeStruct((2, 300), jnp.int8)
    lengths = jax.ShapeDtypeStruct((2,), jnp.int8)
    cache = model.init_cache(2, 300)
    step = lambda model, *given: model(given[0], cache=cache, lengths=given[1], padding="left")  # noqa: E731
    _, after = nnx.eval_shape(step, model, tokens, lengths)
    assert after.length.dtype == after.returnable.dtype == jnp.int32


def test_a_cache_of_another_model_is_named(model):
    own = model.init_cache(2, 20)
    check_cache(own, model.init_states, TOKENS, None)
    other = dataclasses.replace(TINY, compress_ratios=(128,))
    others = [
        phasejax.Qwen3(config_of("w8s8"), rngs=nnx.Rngs(0)).init_cache(2, 20),
        nnx.eval_shape(lambda: phasejax.DeepseekV4(other, rngs=nnx.Rngs(0))).init_cache(2, 20),
        dataclasses.replace(own, layers=own.layers[1:]),
        dataclasses.replace(own, max_rollback=3),
        dataclasses.replace(
            own,
            layers=jax.tree.map(
                lambda x: x.astype(jnp.float16) if x.dtype == jnp.float32 else x, own.layers
            ),
        ),
    ]
    for cache in others:
        with pytest.raises(ValueError, match=r"another model made it, so make one by this model's"):
            check_cache(cache, model.init_states, TOKENS, None)
    with pytest.raises(ValueError, match=r"cache is a tuple, but it must be what init_cache"):
        check_cache((1, own), model.init_states, TOKENS, None)


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (1.5, r"count=1.5, but it must be a whole number, or one for each of the 2 streams"),
        (True, r"count=True"),
        ("1", r"count='1'"),
        (np.ones(3, int), r"count=array\(\[1, 1, 1\]\)"),
    ],
)
def test_counts_that_are_none_are_not_taken_back(model, count, message):
    rollback = phasejax.models.cache.Cache.rollback
    with pytest.raises(ValueError, match=message):
        getattr(rollback, "__wrapped__", rollback)(model.init_cache(2, 20), count)


def test_taking_back_too_much_is_not_a_number_while_tracing(model):
    """From then on: tokens that follow do not make the stream whole."""

    @nnx.jit
    def run(model, tokens, counts):
        cache = model.init_cache(3, 20, max_rollback=3)
        _, cache = model(tokens, cache=cache, lengths=jnp.full(3, 4))
        logits, cache = model(tokens, cache=cache.rollback(counts), lengths=jnp.full(3, 5))
        return logits, model(tokens, cache=cache)[0]

    tokens = jnp.tile(TOKENS[:1, :5], (3, 1))
    first, second = map(np.asarray, run(model, tokens, jnp.asarray([4, -1, 3])))
    for logits in (first, second):
        assert np.isnan(logits[:2]).all() and np.isfinite(logits[2]).all()


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (dict(batch=2.0, max_length=4), r"batch=2.0, but it must be a whole number"),
        (dict(batch=2, max_length="4"), r"max_length='4', but"),
        (dict(batch=2, max_length=4, max_rollback=True), r"max_rollback=True, but"),
    ],
)
def test_sizes_of_a_cache_are_whole_numbers(model, size, message):
    init_cache = phasejax.models.decoder.Decoder.init_cache
    with pytest.raises(ValueError, match=message):
        getattr(init_cache, "__wrapped__", init_cache)(model, **size)


def test_what_can_be_taken_back_is_counted_by_stream(model):
    cache = model.init_cache(2, 20, max_rollback=4)
    cache = cache.after(cache.layers, jnp.asarray([6, 2]))
    assert cache.length.tolist() == [6, 2] and cache.returnable.tolist() == [4, 2]
    back = cache.rollback(jnp.asarray([3, 1]))
    assert back.length.tolist() == [3, 1] and back.returnable.tolist() == [1, 1]
    with pytest.raises(ValueError, match=r"count=\[2, 2\], but .* can take back \[1, 1\]"):
        back.rollback(2)
    assert cache.length.tolist() == [6, 2]
    assert not back.fails(jnp.asarray([17, 0])).any() and back.fails(jnp.asarray([18, 0]))[0]


class Loaded(Decoder):
    """A die: token t has the logit t, whatever came before."""

    def __init__(self):
        self.config = TINY

    def forward(self, tokens, position, states, count):
        return jnp.broadcast_to(jnp.arange(2.0), (*tokens.shape, 2)), []

    def init_states(self, batch, capacity, spare):
        return []


def test_draws_are_new_at_every_step_and_follow_the_temperature():
    tokens = jnp.zeros((64, 1), jnp.int32)
    for temperature in (0.5, 2.0):
        got = np.asarray(
            phasejax.generate(
                Loaded(),
                tokens,
                max_new_tokens=64,
                temperature=temperature,
                key=jax.random.key(3),
            )
        )
        chance = 1 / (1 + np.exp(-1 / temperature))  # of token 1: 0.88, 0.62
        np.testing.assert_allclose(got.mean(), chance, atol=0.03)  # 4 standard deviations
        assert got.mean(axis=1).min() > 0 and got.mean(axis=1).std() < 0.1  # steps are apart


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(max_new_tokens=2.0), "max_new_tokens=2.0, but it must be a whole number"),
        (dict(max_new_tokens=True), "max_new_tokens=True, but it must be a whole number"),
        (dict(temperature=float("nan")), "temperature=nan, but it must be a finite number"),
        (dict(temperature=float("inf")), "temperature=inf, but"),
        (dict(temperature="1"), "temperature=1, but"),
        (dict(temperature=0.5, key=0), r"key=0: draws need a key, so pass key=jax.random.key"),
        (dict(temperature=0.5, key=jax.random.split(jax.random.key(0), 2)), "draws need a key"),
        (dict(tokens=jnp.full((1, 2), VOCABULARY)), f"tokens hold {VOCABULARY}, but"),
    ],
)
def test_what_cannot_be_generated_is_named(changes, message):
    generate = getattr(phasejax.generate, "__wrapped__", phasejax.generate)
    arguments = {"tokens": TOKENS, "max_new_tokens": 2} | changes
    with pytest.raises(ValueError, match=message):
        generate(Loaded(), **arguments)
