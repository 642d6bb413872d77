# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Work on a few queries at a time, so that no array grows with queries times entries."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from phasejax.typing import Array

# Float32 numbers of the largest array within a block: 128 MiB.
BUDGET = 2**25

Result = TypeVar("Result")


def rows_within_budget(numbers_a_row: int) -> int:
    """How many rows of so many numbers stay within the budget, at least one."""
    return max(1, BUDGET // max(1, numbers_a_row))


def by_rows(function: Callable[..., Result], rows: int, *arrays: Array) -> Result:
    """Applies a function to blocks of axis 1 and joins what it returns along that axis.

    Args:
        function: takes the index of the block's first row, then the blocks of the arrays.
        rows: rows of a block; the last block is filled up with zeros.
        *arrays: their axis 1 is the axis of rows.
    """
    total = arrays[0].shape[1]
    if total <= rows:
        return function(0, *arrays)
    count = -(-total // rows)

    def split(x: Array) -> Array:
        x = jnp.pad(x, ((0, 0), (0, count * rows - total)) + ((0, 0),) * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(x.shape[0], count, rows, *x.shape[2:]), 1, 0)

    def join(x: Array) -> Array:
        x = jnp.moveaxis(x, 0, 1)
        return x.reshape(x.shape[0], count * rows, *x.shape[3:])[:, :total]

    # The backward pass computes a block again, instead of keeping the scores of all of them.
    one_block = jax.checkpoint(lambda block: function(*block))
    joined = jax.lax.map(one_block, (jnp.arange(count) * rows, *map(split, arrays)))
    return jax.tree.map(join, joined)
