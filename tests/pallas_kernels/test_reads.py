# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What queries of compressed attention read of streams in part, and among many entries."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.compressed_attention import api, xla_blocked
from pallas_kernels.compressed_attention.masks import covered_tokens
from tests.pallas_kernels.compare import assert_close
from tests.pallas_kernels.test_compressed_attention import Case


@pytest.mark.parametrize("tail_only", [False, True])
def test_streams_that_keep_the_last_tokens_read_what_the_whole_reads(tail_only):
    """Row 0 keeps tokens 12 .. 20, row 1 is short: what it keeps starts before its first token."""
    case = Case(tail_only=tail_only, window=6)
    arrays, call = case.operands()
    whole = case.by_loops()
    first, queries = np.array([12, -3]), np.array([[18, 20], [2, 4]])
    kept = first[:, None] + np.arange(9)

    def cut(x, at):
        return np.stack([np.asarray(x)[b, np.maximum(row, 0)] for b, row in enumerate(at)])

    arrays = {k: cut(x, kept) if k in ("key", "value") else x for k, x in arrays.items()}
    # What stands before the first token of a stream is anything.
    arrays["key"][1, :3], arrays["value"][1, :3] = 0, 99
    run = jax.jit(functools.partial(api.compressed_attention, window=6, tail_only=tail_only))
    query = cut(arrays["query"], queries)
    found = run(**arrays | {"query": query}, **call, first=first, query_position=queries)
    assert_close(found, cut(whole, queries))


@pytest.mark.parametrize("most", [0, 2**20])
def test_tokens_that_are_all_entries_are_full_attention(monkeypatch, most):
    monkeypatch.setattr(xla_blocked, "ONE_PIECE", most)
    arrays, _ = Case(window=None).operands()
    query, key, value = (arrays[name] for name in ("query", "key", "value"))

    def attend(exact, entries, end):
        operands = (
            query,
            *(x[:, exact] for x in (key, value)),
            *(x[:, entries] for x in (key, value)),
        )
        position = jnp.arange(query.shape[1])
        call = functools.partial(api.compressed_attention, window=None, query_position=position)
        return jax.jit(call)(*operands, end)

    some, none = slice(None), slice(0)
    wanted = attend(some, none, jnp.zeros(0, jnp.int32))
    np.testing.assert_allclose(attend(none, some, jnp.arange(key.shape[1])), wanted, atol=1e-6)


def test_covered_tokens_of_many_entries():
    """So many that the mask of all queries would not be made at once."""
    end = np.sort(np.random.default_rng(0).integers(0, 2**21, (1, 2**20))).astype(np.int32)
    position = np.array([[5, 2**20, 3, 2**21, -1, 77]], np.int32)
    zero = jnp.zeros((1, 1), jnp.int32)
    segments = jnp.broadcast_to(zero, position.shape), jnp.broadcast_to(zero, end.shape)
    found = jax.jit(covered_tokens)(position, segments[0], end, segments[1])
    wanted = [max(end[0][end[0] <= p].max(initial=-1) + 1, 0) for p in position[0]]
    np.testing.assert_array_equal(found[0], wanted)
