# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What is summed in float32, whatever the operands are: scores, and gradients over many tiles."""

import functools

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.compressed_attention import reference
from pallas_kernels.compressed_attention import xla_blocked as compressed
from pallas_kernels.compressed_attention.config import Blocks
from pallas_kernels.compressed_attention.masks import Reads
from pallas_kernels.selected_attention import xla_blocked as selected
from tests.pallas_kernels import test_compressed_attention
from tests.pallas_kernels.compare import assert_close, in_float64

TOKENS = 2048


def attend_to_all(query, near, entry):
    at, zero = jnp.arange(TOKENS)[None], jnp.zeros((1, TOKENS), jnp.int32)
    reads = Reads(at, at, zero, zero, jnp.zeros((1, 1), jnp.int32), zero[:, :1])
    call = functools.partial(compressed.compressed_attention, span=1, blocks=Blocks(4, 4, 1))
    return call(query, near, entry, reads, None)


def attend_to_picked(query, near, entry):
    zero = jnp.zeros((1, TOKENS), jnp.int32)
    call = functools.partial(selected.selected_attention, window=1, block=4)
    return call(query, near, entry, zero[..., None], zero, None)


@pytest.mark.parametrize("attend", [attend_to_all, attend_to_picked])
def test_sums_over_tiles_are_in_float32(attend):
    """Each query weighs its own token and one entry alike: bfloat16 counts halves up to 256."""
    rows, one = jnp.zeros((1, TOKENS, 1, 2), jnp.bfloat16), jnp.zeros((1, 1, 1, 2), jnp.bfloat16)

    def total(value):
        return attend(rows, (rows, rows), (one, value)).astype(jnp.float32).sum()

    assert (jax.jit(jax.grad(total))(one) == TOKENS / 2).all()


@pytest.mark.parametrize("name", ["reference", "one_piece", "xla_blocked"])
def test_scores_of_bfloat16_are_float32(name):
    """Rounded scores of this size would change weights by a tenth."""
    case = test_compressed_attention.Case(heads=4, kv_heads=2, chunk=(2, 2), dtype="bfloat16")
    arrays, _ = case.operands()
    arrays["query"] *= 16
    out = jax.jit(case.attend(test_compressed_attention.small(case, name)))(arrays)
    assert_close(out, in_float64(case.attend(reference.compressed_attention), arrays), "bfloat16")
