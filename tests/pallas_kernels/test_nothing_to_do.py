# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Axes without a row, which no tile can be cut from: what comes back is as empty, or zeros."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.chunk_pool.api import chunk_pool
from pallas_kernels.compressed_attention.api import compressed_attention
from pallas_kernels.index_topk.api import index_topk
from pallas_kernels.ragged_pool.api import ragged_pool
from pallas_kernels.selected_attention.api import selected_attention


def attend(batch, queries, tokens):
    rows, none = jnp.ones((batch, tokens, 1, 4)), jnp.ones((batch, 0, 1, 4))
    call = functools.partial(compressed_attention, window=4)
    at = jnp.zeros(queries, int)
    query = jnp.ones((batch, queries, 2, 4))
    return call(query, rows, rows, none, none, jnp.zeros(0, int), query_position=at)


def attend_to_picked(batch, queries, picks):
    rows = jnp.ones((batch, queries, 1, 4))
    query, index = jnp.ones((batch, queries, 2, 4)), jnp.zeros((batch, queries, picks), int)
    return selected_attention(query, rows, rows, rows, rows, index, window=4)


def choose(batch, queries):
    query, weight = jnp.ones((batch, queries, 2, 4)), jnp.ones((batch, queries, 2))
    return index_topk(query, weight, jnp.ones((batch, 3, 4)), jnp.zeros(3, int), picks=5).score


@pytest.mark.parametrize(
    ("function", "sizes", "shape"),
    [
        (attend, (2, 0, 3), (2, 0, 2, 4)),
        (attend, (0, 3, 3), (0, 3, 2, 4)),
        (attend_to_picked, (2, 0, 3), (2, 0, 2, 4)),
        (attend_to_picked, (0, 3, 3), (0, 3, 2, 4)),
        (choose, (2, 0), (2, 0, 5)),
        (choose, (0, 3), (0, 3, 5)),
        (lambda *n: chunk_pool(jnp.ones((*n, 4, 1, 6))), (2, 0), (2, 0, 6)),
        (lambda *n: chunk_pool(jnp.ones((*n, 4, 1, 6))), (0, 2), (0, 2, 6)),
        (
            lambda n: ragged_pool(jnp.ones((n, 2, 6)), None, jnp.zeros((n, 2), int), entries=3),
            (0,),
            (0, 3, 6),
        ),
    ],
)
def test_what_is_empty_stays_empty(function, sizes, shape):
    assert jax.eval_shape(functools.partial(function, *sizes)).shape == shape


def test_without_tokens_or_picks_the_rest_is_read():
    assert (jax.jit(functools.partial(attend, 1, 2, 0))() == 0).all()
    np.testing.assert_array_equal(jax.jit(functools.partial(attend_to_picked, 1, 2, 0))(), 1)
    nothing = jnp.ones((1, 0, 6)), None, jnp.zeros((1, 0), int)
    assert (jax.jit(lambda: ragged_pool(*nothing, entries=3))() == 0).all()
