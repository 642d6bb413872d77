# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Work on a few queries at a time, so that no array grows with queries times entries."""

from collections.abc import Callable
from typing import TypeVar

import jax

from pallas_kernels import tiles
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
        function: takes the blocks of the arrays.
        rows: rows of a block; the last block is filled up with zeros.
        *arrays: their axis 1 is the axis of rows.
    """
    total = arrays[0].shape[1]
    if total <= rows:
        return function(*arrays)
    # The backward pass computes a block again, instead of keeping the scores of all of them.
    one_block = jax.checkpoint(lambda block: function(*block))
    blocks = tuple(tiles.split(x, rows) for x in arrays)
    return jax.tree.map(lambda x: tiles.join(x, total), jax.lax.map(one_block, blocks))
