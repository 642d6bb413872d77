# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Pooling over chunks of any length: every implementation against the contract, that by loops."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.ragged_pool import pallas_tpu, reference, xla_blocked
from pallas_kernels.ragged_pool.api import ragged_pool
from pallas_kernels.ragged_pool.arg_specs import SPECS
from pallas_kernels.ragged_pool.config import Blocks, tpu_heuristic
from tests.pallas_kernels.compare import (
    assert_close,
    in_float64,
    lower_for_tpu,
    mostly_slow,
    strictly,
)


def kernel(value, score, chunk, *, entries, interpret=True):
    """Tiles that chunks straddle, and the last of which are partial."""
    blocks = Blocks(token=32, entry=8, channel=value.shape[2])
    return pallas_tpu.ragged_pool(
        value, score, chunk, entries=entries, blocks=blocks, interpret=interpret
    )


IMPLEMENTATIONS = {
    "reference": reference.ragged_pool,
    "xla_blocked": xla_blocked.ragged_pool,
    "pallas_tpu": kernel,
}
SHAPE = {"batch": 2, "tokens": 45, "channels": 6}
ENTRIES = 9


def operands(*, batch, tokens, channels, gates=None, longest=7, first=-1, dtype="float32", seed=0):
    """Chunks of 0 .. longest tokens; the first tokens and the last belong to none."""
    rng = np.random.default_rng(seed)
    chunk = np.full((batch, tokens), tokens)
    for row in chunk:
        ids = np.repeat(np.arange(first, tokens), rng.integers(0, longest + 1, tokens - first))
        row[: ids.size] = ids[:tokens]
    value = jnp.asarray(rng.normal(size=(batch, tokens, channels)), dtype)
    score = jnp.asarray(4 * rng.normal(size=(batch, tokens, gates or channels)), dtype)
    return value, score, jnp.asarray(chunk, jnp.int32)


def by_loops(value, score, chunk, entries):
    """One softmax a chunk and channel, in float64."""
    value, score, chunk = (np.asarray(x, np.float64) for x in (value, score, chunk))
    out = np.zeros((value.shape[0], entries, value.shape[2]))
    for b, e in np.ndindex(*out.shape[:2]):
        member = chunk[b] == e
        if member.any():
            gate = np.exp(score[b, member] - score[b, member].max(0))
            out[b, e] = (gate / gate.sum(0) * value[b, member]).sum(0)
    return out


@functools.cache
def compiled(name, entries=ENTRIES):
    return jax.jit(functools.partial(IMPLEMENTATIONS[name], entries=entries))


def gradients(function, entries=ENTRIES):
    """Of a fixed weighted sum of the entries, by values and scores."""

    def loss(real, chunk):
        out = function(*real, chunk, entries=entries)
        out = out.astype(jnp.promote_types("float32", out.dtype))
        return jnp.sum(out * jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape))

    return lambda value, score, chunk: jax.grad(loss)((value, score), chunk)


VARIANTS = {"vector": {}, "scalar": {"gates": 1}, "bfloat16": {"dtype": "bfloat16"}}


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
class TestRaggedPool:
    """What every implementation owes."""

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_values(self, name, variant):
        x = operands(**SHAPE | VARIANTS[variant])
        actual = compiled(name)(*x)
        assert actual.dtype == x[0].dtype
        assert_close(actual, by_loops(*x, ENTRIES), str(x[0].dtype))

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_gradients(self, name, variant):
        x = operands(**SHAPE | VARIANTS[variant])
        actual = jax.jit(gradients(IMPLEMENTATIONS[name]))(*x)
        expected = in_float64(gradients(reference.ragged_pool), *x)
        assert [a.dtype for a in actual] == [x[0].dtype, x[1].dtype]
        assert_close(actual, expected, str(x[0].dtype))

    def test_tokens_outside_the_entries_count_for_nothing(self, name):
        value, score, chunk = operands(**SHAPE)
        outside = (chunk < 0) | (chunk >= ENTRIES)
        assert (chunk < 0).any() and (chunk >= ENTRIES).any()
        before = compiled(name)(value, score, chunk)
        moved = jnp.where(outside[..., None], 1e3, value), jnp.where(outside[..., None], 1e3, score)
        np.testing.assert_array_equal(before, compiled(name)(*moved, chunk))
        for grad in jax.jit(gradients(IMPLEMENTATIONS[name]))(value, score, chunk):
            assert (grad[outside] == 0).all()

    def test_an_empty_chunk_is_zero_with_finite_gradients(self, name):
        value, score, chunk = operands(**SHAPE)
        chunk = jnp.where(chunk == 3, 2, chunk)
        assert (compiled(name)(value, score, chunk)[:, 3] == 0).all()
        nothing = jnp.full_like(chunk, ENTRIES)
        assert (compiled(name)(value, score, nothing) == 0).all()
        for grad in jax.jit(gradients(IMPLEMENTATIONS[name]))(value, score, nothing):
            assert (grad == 0).all()

    def test_scores_of_other_chunks_may_be_far_away(self, name):
        """A maximum over the sequence instead of the chunk would underflow."""
        value, score, chunk = operands(**SHAPE)
        score = score + 1000 * jnp.sin(chunk.astype(jnp.float32))[..., None]
        # The offset rounds the scores, and the loops see the rounded ones.
        assert_close(compiled(name)(value, score, chunk), by_loops(value, score, chunk, ENTRIES))

    @pytest.mark.parametrize("length", [4, 5])
    def test_tiles_of_entries_end_with_a_tile_of_tokens_or_one_row_into_the_next(
        self, name, length
    ):
        """The last chunk lies in two tiles of tokens, none of which may count twice."""
        value, score, _ = operands(**SHAPE | {"tokens": 70})
        chunk = np.repeat(np.arange(9), [4] * 7 + [length, 42 - length])
        chunk = jnp.broadcast_to(chunk, (2, 70))
        assert_close(compiled(name)(value, score, chunk), by_loops(value, score, chunk, ENTRIES))

    def test_chunks_of_one_length_are_windows(self, name):
        value, score, _ = operands(**SHAPE)
        chunk = jnp.broadcast_to(jnp.arange(45) // 5, (2, 45))
        gate = jax.nn.softmax(score.reshape(2, 9, 5, 6), axis=2)
        expected = (gate * value.reshape(2, 9, 5, 6)).sum(2)
        assert_close(compiled(name)(value, score, chunk), expected)


@pytest.mark.parametrize("name", mostly_slow(IMPLEMENTATIONS))
def test_vmap_and_remat(name):
    x = operands(**SHAPE)
    call = functools.partial(IMPLEMENTATIONS[name], entries=ENTRIES)
    mapped = jax.jit(jax.vmap(call))(*(jnp.stack([v, v]) for v in x))
    assert_close(mapped[1], by_loops(*x, ENTRIES))

    def remat(*args, entries):
        return jax.checkpoint(functools.partial(IMPLEMENTATIONS[name], entries=entries))(*args)

    plain, again = (jax.jit(gradients(f))(*x) for f in (IMPLEMENTATIONS[name], remat))
    assert_close(again, plain)


@pytest.mark.parametrize("name", mostly_slow(IMPLEMENTATIONS))
@hypothesis.settings(max_examples=6, deadline=None, derandomize=True)
@hypothesis.given(
    tokens=st.integers(1, 30),
    entries=st.integers(1, 12),
    longest=st.integers(1, 30),
)
def test_any_shape(name, tokens, entries, longest):
    x = operands(batch=1, tokens=tokens, channels=3, longest=longest, first=0, seed=tokens)
    assert_close(compiled(name, entries)(*x), by_loops(*x, entries))


class TestOnTpu:
    """The kernel on a simulated TPU, and what a real one would compile."""

    @pytest.mark.parametrize("variant", mostly_slow(VARIANTS, fast=["vector"]))
    def test_memory_that_was_not_written_is_not_read_and_nothing_races(self, variant):
        x = operands(**SHAPE | VARIANTS[variant])
        dtype = str(x[0].dtype)
        actual = strictly(functools.partial(kernel, entries=ENTRIES), *x)
        assert_close(actual, by_loops(*x, ENTRIES), dtype)

        def backward(*x, interpret):
            return gradients(functools.partial(kernel, interpret=interpret))(*x)

        expected = in_float64(gradients(reference.ragged_pool), *x)
        assert_close(strictly(backward, *x), expected, dtype)

    def test_tiles_of_channels(self):
        value, score, chunk = operands(batch=1, tokens=40, channels=256)
        call = functools.partial(pallas_tpu.ragged_pool, blocks=Blocks(32, 8, 128), interpret=True)
        actual = jax.jit(functools.partial(call, entries=ENTRIES))(value, score, chunk)
        assert_close(actual, by_loops(value, score, chunk, ENTRIES))

    @pytest.mark.parametrize("name", SPECS)
    def test_lowers_forward_and_backward(self, name):
        operands, options = SPECS[name]
        call = functools.partial(pallas_tpu.ragged_pool, **options)
        assert lower_for_tpu(call, *operands).count("tpu_custom_call") == 1
        # Two kernels: the backward pass keeps what the forward pass normalised with.
        pulled = gradients(pallas_tpu.ragged_pool, **options)
        assert lower_for_tpu(pulled, *operands).count("tpu_custom_call") == 2

    @pytest.mark.parametrize(("tokens", "entries"), [(1, 1), (4096, 512), (131072, 8), (64, 512)])
    @pytest.mark.parametrize(("channels", "gates"), [(512, 512), (1024, 1), (4096, 4096), (96, 1)])
    def test_blocks_suit_the_layout(self, tokens, entries, channels, gates):
        blocks = tpu_heuristic(tokens, entries, channels, gates)
        assert blocks.token % 32 == 0
        assert blocks.entry % 8 == 0
        assert channels % blocks.channel == 0
        assert gates > 1 or blocks.channel == channels


class TestCall:
    """The public call: defaults, and what it refuses."""

    def test_without_scores_it_is_the_mean(self):
        value, _, _ = operands(**SHAPE)
        chunk = jnp.broadcast_to(jnp.arange(45) // 5, (2, 45))
        expected = value.reshape(2, 9, 5, 6).mean(2)
        assert_close(ragged_pool(value, None, chunk, entries=ENTRIES), expected)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"value": jnp.zeros((2, 45))}, r"value.shape=\(2, 45\).*reshape"),
            ({"value": jnp.zeros((2, 45, 6), int)}, "value.dtype=int32.*astype"),
            ({"score": jnp.zeros((2, 45, 2))}, r"score.shape=\(2, 45, 2\).*one of"),
            ({"chunk": jnp.zeros((2, 44), int)}, r"chunk.shape=\(2, 44\).*\(2, 45\)"),
            ({"chunk": jnp.zeros((2, 45))}, "chunk.dtype=float32.*integers"),
            ({"chunk": -jnp.broadcast_to(jnp.arange(45), (2, 45))}, "step of chunk=-1.*sort"),
            ({"entries": 0}, "entries=0.*raise it"),
        ],
    )
    def test_a_mistake_is_named(self, change, message):
        value, score, chunk = operands(**SHAPE)
        call = {"value": value, "score": score, "chunk": chunk, "entries": ENTRIES} | change
        with pytest.raises(ValueError, match=message):
            ragged_pool(**call)

    def test_a_kernel_for_another_backend_says_what_works(self):
        with pytest.raises(NotImplementedError, match="None or 'reference'"):
            ragged_pool(*operands(**SHAPE), entries=ENTRIES, implementation="pallas_tpu")
