# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Cutting rows into tiles, and sums over rows that tiles share."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import tiles


def test_powers_of_two_are_rounded_down():
    found = [tiles.power_of_two_at_most(x) for x in (-1, 0, 1, 2, 3, 4, 7, 8, 9)]
    assert found == [1, 1, 1, 2, 2, 4, 4, 8, 8]


def test_splitting_fills_the_last_tile_and_joining_undoes_it():
    x = jnp.arange(14.0).reshape(2, 7)
    parts = tiles.split(x, 3, fill=-1)
    np.testing.assert_array_equal(parts[:, 1], [[7, 8, 9], [10, 11, 12], [13, -1, -1]])
    np.testing.assert_array_equal(tiles.join(parts, 7), x)
    assert tiles.padded(x, 7) is x


@pytest.mark.parametrize("spoilt", [1.0, np.nan])
def test_rows_at_a_negative_index_are_added_nowhere(spoilt):
    """Not even to the last row, which is what -1 means elsewhere."""
    total = jnp.ones((2, 3, 1))
    index = jnp.asarray([[0, -1, 0], [2, -1, -2]])
    update = jnp.where(index[..., None] < 0, spoilt, 1.0)
    found = tiles.add_rows(total, index, update)
    np.testing.assert_array_equal(found[..., 0], [[3, 1, 1], [1, 1, 2]])
    np.testing.assert_array_equal(tiles.take_rows(total, index).shape, (2, 3, 1))
