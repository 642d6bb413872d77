# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Streams of the Qwen3 decoder equal one call over the whole sequence, variant by variant.

The largest difference is stated relative to the largest logit, and is at most 1e-5; the same
argmax everywhere. Every step of a variant is one compiled program, whatever the streams take.
"""

import functools

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from flax import nnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import phasejax
from pallas_kernels.masks import NEVER
from phasejax.models.build import model_structure
from phasejax.models.cache import Cache
from phasejax.models.config import ModelConfig
from phasejax.models.store import empty_store
from tests.models.test_qwen3 import SMALL, VARIANTS, VOCABULARY, config_of, random_params

LENGTH, WIDTH, SPARE = 44, 5, 6
TOKENS, OTHER = np.random.default_rng(0).integers(VOCABULARY, size=(2, 2, LENGTH)).astype(np.int32)
WRONG = (TOKENS + 1) % VOCABULARY
FAST = "w8s8 w8s4 w8s6 tail_overlap sink full_sink_2kv"


def variants(fast: str) -> pytest.MarkDecorator:
    """Every variant; those that are not named run with the slow tests."""
    names = fast.split()
    marked = [pytest.param(n, marks=() if n in names else pytest.mark.slow) for n in VARIANTS]
    return pytest.mark.parametrize("name", marked)


every_variant, few_variants = variants(FAST), variants("w8s4 tail_overlap full_sink_2kv")


class Machine:
    """A variant with random parameters, compiled: whole sequences, and a step that takes a cache.

    The step donates its cache, so it shows what a snapshot is for.
    """

    def __init__(self, name: str):
        config = config_of(name)
        self.graph, self.params = model_structure(config), random_params(config)
        self.model = nnx.merge(self.graph, self.params)
        run = jax.jit(lambda params, tokens: nnx.merge(self.graph, params)(tokens))
        self.whole = functools.cache(lambda key: np.asarray(run(self.params, _sequence(*key))))
        self.step = jax.jit(self._step, donate_argnums=2, static_argnums=4)

    def _step(self, params, tokens, cache, lengths, padding):
        model = nnx.merge(self.graph, params)
        return model(tokens, cache=cache, lengths=lengths, padding=padding)

    def feed(self, cache, rows, width=WIDTH, padding="right"):
        """Feeds each stream its row of tokens in one step; logits of each."""
        tokens = np.full((2, width), VOCABULARY - 1, np.int32)
        left = padding == "left"
        real = [slice(width - len(r), width) if left else slice(0, len(r)) for r in rows]
        for row, where, new in zip(tokens, real, rows, strict=True):
            row[where] = new
        lengths = jnp.asarray([len(row) for row in rows], jnp.int32)
        logits, cache = self.step(self.params, jnp.asarray(tokens), cache, lengths, padding)
        return [np.asarray(logits[b])[where] for b, where in enumerate(real)], cache

    def run(self, cache, cuts, rows=TOKENS, *, until=LENGTH):
        """Feeds both streams from where they stand up to a length, cuts again and again."""
        place, parts = np.asarray(cache.length), []
        while (place < until).any():
            for cut in cuts:
                ends = np.minimum(place + cut, until)
                new = [row[a:b] for row, a, b in zip(rows, place, ends, strict=True)]
                logits, cache = self.feed(cache, new)
                parts.append(logits)
                place = ends
        return [np.concatenate(part) for part in zip(*parts, strict=True)], cache

    def new_cache(self, capacity=LENGTH):
        return self.model.init_cache(2, capacity, max_rollback=SPARE)


def _sequence(cut: int) -> np.ndarray:
    """The tokens up to a cut, then the others; in both rows."""
    return np.concatenate([TOKENS[:, :cut], OTHER[:, cut:]], axis=1)


machine = functools.cache(Machine)


def assert_close(got, wanted):
    scale = max(np.abs(rows).max() for rows in wanted)
    for one, other in zip(got, wanted, strict=True):
        assert np.abs(one - other).max(initial=0) <= 1e-5 * scale
        np.testing.assert_array_equal(one.argmax(-1), other.argmax(-1))


cut = st.tuples(st.integers(0, WIDTH), st.integers(0, WIDTH))
cuts = st.lists(cut, max_size=5).map(lambda some: [*some, (1, 2)])
few = settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))


@every_variant
@few
@given(cuts=cuts)
def test_any_cuts_of_ragged_rows_equal_one_call(name, cuts):
    m = machine(name)
    got, cache = m.run(m.new_cache(), [np.asarray(cut) for cut in cuts])
    assert_close(got, m.whole((LENGTH,)))
    assert cache.length.tolist() == [LENGTH, LENGTH]


@every_variant
@few
@given(cuts=cuts, wrong=cut, more=cut)
def test_wrong_tails_leave_no_trace(name, cuts, wrong, more):
    """Drafts are fed and taken back before every step, in rows apart, in one or two steps."""
    m = machine(name)
    cache, parts, place = m.new_cache(LENGTH + 2 * WIDTH), [], np.zeros(2, int)
    while (place < LENGTH).any():
        for cut in cuts:
            drafts = [np.minimum(wrong, 3), np.minimum(more, SPARE - 3)]
            for draft in drafts:
                start = np.minimum(place, LENGTH - 4)
                _, cache = m.feed(
                    cache, [r[a : a + n] for r, a, n in zip(WRONG, start, draft, strict=True)]
                )
            cache = cache.rollback(jnp.asarray(sum(drafts), jnp.int32))
            ends = np.minimum(place + cut, LENGTH)
            got, cache = m.feed(
                cache, [r[a:b] for r, a, b in zip(TOKENS, place, ends, strict=True)]
            )
            parts.append(got)
            place = ends
    got = [np.concatenate(rows) for rows in zip(*parts, strict=True)]
    assert_close(got, m.whole((LENGTH,)))


@every_variant
@few
@given(at=st.integers(1, LENGTH - 1))
def test_a_prefix_is_used_again_at_any_cut(name, at):
    m = machine(name)
    got, cache = m.run(m.new_cache(), [np.asarray((3, 5))], until=at)
    assert_close(got, m.whole((LENGTH,))[:, :at])
    kept = cache.snapshot()
    m.run(cache, [np.asarray((4, 1))], WRONG)
    for cut in (LENGTH, at):  # two continuations
        got, _ = m.run(kept.snapshot(), [np.asarray((5, 2))], _sequence(cut))
        assert_close(got, m.whole((cut,))[:, at:])


@few_variants
@pytest.mark.parametrize("padding", ["left", "right"])
def test_a_padded_prefill_then_single_tokens(name, padding):
    m, width = machine(name), LENGTH - 10
    lengths = (width, width - 7)
    prompts = [row[:n] for row, n in zip(TOKENS, lengths, strict=True)]
    got, cache = m.feed(m.new_cache(), prompts, width, padding)
    wanted = m.whole((LENGTH,))
    assert_close(got, [wanted[b, :n] for b, n in enumerate(lengths)])
    for _ in range(7):
        place = cache.length.tolist()
        got, cache = m.feed(cache, [r[n : n + 1] for r, n in zip(TOKENS, place, strict=True)])
        assert_close(got, [wanted[b, n : n + 1] for b, n in enumerate(place)])


@pytest.mark.parametrize("name", ["w8s4"])
def test_whole_prompts_may_be_padded_on_either_side(name):
    m, wanted = machine(name), machine(name).whole((LENGTH,))
    call = jax.jit(
        lambda p, t, n, side: nnx.merge(m.graph, p)(t, lengths=n, padding=side), static_argnums=3
    )
    lengths, moved = jnp.asarray([LENGTH, LENGTH - 9], jnp.int32), TOKENS.copy()
    moved[1] = np.roll(moved[1], 9)
    right = np.asarray(call(m.params, TOKENS, lengths, "right"))
    left = np.asarray(call(m.params, moved, lengths, "left"))
    assert_close([right[0], right[1, : LENGTH - 9]], [wanted[0], wanted[1, : LENGTH - 9]])
    assert_close([left[0], left[1, 9:]], [wanted[0], wanted[1, : LENGTH - 9]])


@pytest.mark.parametrize(
    ("name", "padding"),
    [("w8s4", "left"), ("full", "right"), pytest.param("tail", "left", marks=pytest.mark.slow)],
)
def test_greedy_tokens_are_those_of_whole_sequences(name, padding):
    m, lengths, new = machine(name), [12, 5], 20
    tokens = np.zeros((2, 12), np.int32)
    for row, prompt, n in zip(tokens, TOKENS, lengths, strict=True):
        row[slice(12 - n, 12) if padding == "left" else slice(n)] = prompt[:n]
    got = phasejax.generate(
        m.model,
        jnp.asarray(tokens),
        max_new_tokens=new,
        lengths=jnp.asarray(lengths, jnp.int32),
        padding=padding,
    )
    sequence = TOKENS.copy()
    for row, n, chosen in zip(sequence, lengths, np.asarray(got), strict=True):
        row[n : n + new] = chosen
    logits = np.asarray(jax.jit(lambda p, t: nnx.merge(m.graph, p)(t))(m.params, sequence))
    for row, n, chosen in zip(logits, lengths, np.asarray(got), strict=True):
        np.testing.assert_array_equal(row.argmax(-1)[n - 1 : n - 1 + new], chosen)


@pytest.mark.parametrize("name", ["w8s4", "tied", "full"])
def test_a_step_keeps_shapes_and_low_precision(name):
    config = ModelConfig(**SMALL | VARIANTS[name], compute_dtype="bfloat16")
    model = nnx.eval_shape(lambda: phasejax.Qwen3(config, rngs=nnx.Rngs(0)))
    graph, params = nnx.split(model)
    cache = jax.eval_shape(lambda: model.init_cache(2, LENGTH))
    step = lambda p, t, c: nnx.merge(graph, p)(t, cache=c)  # noqa: E731
    logits, after = jax.eval_shape(step, params, jnp.zeros((2, 3), jnp.int32), cache)
    assert logits.dtype == jnp.bfloat16
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(
        lambda x: (x.shape, x.dtype), cache
    )


def test_streams_of_any_length_share_one_program():
    m = Machine("w8s4")
    cache = m.new_cache()
    for cut in ((2, 5), (0, 1), (3, 2), (5, 0)):
        place = np.asarray(cache.length)
        cache = m.feed(
            cache, [row[p : p + n] for row, p, n in zip(TOKENS, place, cut, strict=True)]
        )[1]
        cache = cache.rollback(1)
    assert m.step._cache_size() == 1


def test_a_stream_past_its_capacity_is_not_a_number_while_tracing():
    m = machine("w8s4")
    _, cache = m.run(m.new_cache(), [np.asarray((5, 4))], until=LENGTH - 1)
    got, _ = m.feed(cache, [TOKENS[0, :2], TOKENS[1, :1]])
    assert np.isnan(got[0]).all() and np.isfinite(got[1]).all()


def test_entries_of_tokens_that_were_taken_back_are_out_of_sight():
    """Where content decides how long chunks are, no new entry need take their place in time."""
    store = empty_store((1, 3, 1, 2), jnp.dtype("float32"), tied=True)
    no = jnp.zeros((1, 0), jnp.int32)
    row = lambda *x: jnp.asarray([x], jnp.int32)  # noqa: E731
    key = jnp.ones((1, 2, 1, 2))
    store = store.extend(key, None, row(3, 7), row(1, 1) > 0, row(0)[0])
    assert store.end.tolist() == [[3, 7, NEVER]]
    store = store.extend(key[:, :0], None, no, no > 0, row(5)[0])
    assert store.end.tolist() == [[3, NEVER, NEVER]]


def test_padding_of_full_attention_is_not_stored():
    m = machine("full_sink_2kv")
    _, cache = m.feed(m.new_cache(), [TOKENS[0, :5], TOKENS[1, :2]])
    for layer in cache.layers:
        assert (layer.far.end < NEVER).sum(1).tolist() == [5, 2]


TWO = jnp.zeros((2, 3), jnp.int32)


@pytest.fixture
def unchecked(monkeypatch):
    """Shapes and types are not checked by annotations, as outside these tests."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def _full(m: Machine) -> Cache:
    return m.run(m.new_cache(), [np.asarray((5, 5))])[1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.model(TWO[:, :0]), r"tokens of shape \(2, 0\) hold no token"),
        (lambda m: m.model(TWO[:, :0], cache=m.new_cache()), r"hold no token"),
        (lambda m: m.model(TWO, lengths=jnp.asarray([0, 3])), r"lengths=\[0, 3\].*at least one"),
        (lambda m: m.model(TWO, lengths=jnp.asarray([3, 4])), r"lengths=\[3, 4\].*hold 3 tokens"),
        (lambda m: m.model(TWO, lengths=jnp.asarray([3])), r"lengths of shape \(1,\)"),
        (
            lambda m: m.model(TWO, lengths=jnp.asarray([3, -1]), cache=m.new_cache()),
            r"lengths=\[3, -1\]",
        ),
        (lambda m: m.model(TWO[:1], cache=m.new_cache()), r"tokens has 1 rows.*2 streams"),
        (lambda m: m.model(TWO, cache=_full(m)), r"take \[3, 3\] more.*max_length=44"),
        (lambda m: _full(m).rollback(SPARE + 1), rf"count=\[7, 7\].*max_rollback={SPARE}"),
        (lambda m: m.new_cache().rollback(1), r"count=\[1, 1\].*can take back \[0, 0\]"),
        (lambda m: m.new_cache().rollback(-1), r"count=\[-1, -1\]"),
        (lambda m: m.model.init_cache(0, 4), r"batch=0"),
        (lambda m: m.model.init_cache(1, 0), r"max_length=0"),
        (lambda m: m.model.init_cache(1, 1, max_rollback=-1), r"max_rollback=-1"),
        (
            lambda m: m.model(TWO, cache=m.new_cache(), output_positions=jnp.asarray([0])),
            r"output_positions of shape \(1,\) come with a cache",
        ),
        (lambda m: m.new_cache().rollback(jnp.ones(3, int)), r"count=.*each of the 2 streams"),
        (lambda m: m.model(TWO, padding="Left"), r"padding='Left'.*'left'.*'right'"),
        (lambda m: m.model(TWO, cache=m.new_cache(), padding=None), r"padding=None"),
        (lambda m: m.model(TWO[0]), r"tokens is int32\[3\]"),
        (lambda m: m.model(TWO[:0]), r"tokens of shape \(0, 3\) hold no token"),
        (lambda m: m.model(TWO + 0.5), r"tokens is float32\[2, 3\]"),
        (lambda m: m.model(TWO, lengths=jnp.ones(2)), r"lengths is float32\[2\]"),
        (
            lambda m: phasejax.generate(m.model, TWO[:, :0], max_new_tokens=1),
            r"hold no token",
        ),
        (
            lambda m: phasejax.generate(m.model, TWO, max_new_tokens=1, padding="both"),
            r"padding='both'",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_refused_before_anything_is_computed(call, message):
    with pytest.raises(ValueError, match=message):
        call(machine("w8s4"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model, c: model(TWO, cache=c, padding="middle"), r"padding='middle'"),
        (lambda model, c: model(TWO[:1], cache=c), r"tokens has 1 rows.*2 streams"),
        (lambda model, c: model(TWO[:, :0], cache=c), r"hold no token"),
        (lambda model, c: model(jnp.tile(TWO, 20), cache=c), r"take \[60, 60\] more.*=44"),
        (
            lambda model, c: model(TWO, cache=c, lengths=np.asarray([3, 4])),
            r"lengths=\[3, 4\]",
        ),
        (lambda model, c: c.rollback(SPARE + 1), rf"count=\[7, 7\].*max_rollback={SPARE}"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_is_known_while_tracing_is_refused(call, message):
    m = machine("w8s4")
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda cache: call(m.model, cache), m.new_cache())


@pytest.mark.parametrize("name", ["w8s8", "full"])
def test_a_cache_of_few_tokens(name):
    """No window can be completed, and a step is wider than the cache is long."""
    m = machine(name)
    got, _ = m.feed(m.model.init_cache(2, 3, max_rollback=0), TOKENS[:, :3])
    assert_close(got, m.whole((LENGTH,))[:, :3])
