# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Which tokens feed which entry, against a search over all windows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasejax.compress.geometry import WindowGeometry

GRIDS = [(8, 8), (8, 4), (8, 6), (2, 2), (12, 12), (1, 1), (7, 3), (5, 1)]
TOKENS = 40
grids = pytest.mark.parametrize(("window", "stride"), GRIDS)


def windows_of(window: int, stride: int, tokens: int) -> list[list[int]]:
    """Every complete window, found without arithmetic on its count."""
    found = [[start + i for i in range(window)] for start in range(0, tokens, stride)]
    return [tokens_ for tokens_ in found if tokens_[-1] < tokens]


def test_the_example_of_the_paper():
    grid = WindowGeometry(8, 4)
    assert grid.offsets(5) == {0: 5, 1: 1}
    assert grid.phase(5) == 1
    assert grid.offsets(3) == {0: 3}
    assert WindowGeometry(8, 8).offsets(15) == {1: 7}


@grids
def test_entries_exist_once_their_window_is_complete(window, stride):
    grid = WindowGeometry(window, stride)
    for tokens in range(TOKENS):
        windows = windows_of(window, stride, tokens)
        assert grid.num_entries(tokens) == len(windows)
        assert grid.start(len(windows)).tolist() == [w[0] for w in windows]
        assert grid.end(len(windows)).tolist() == [w[-1] for w in windows]


@grids
def test_offsets_are_the_places_of_a_token_in_all_windows(window, stride):
    grid = WindowGeometry(window, stride)
    windows = windows_of(window, stride, TOKENS + 2 * window)
    for token in range(TOKENS):
        wanted = {e: w.index(token) for e, w in enumerate(windows) if token in w}
        assert grid.offsets(token) == wanted
        assert wanted, "a token that feeds no entry would be lost"
        # Overlap or not, the smallest offset is the phase.
        assert min(wanted.values()) == grid.phase(token)


@grids
def test_two_tokens_share_an_entry_iff_a_window_holds_both(window, stride):
    grid = WindowGeometry(window, stride)
    first, second = np.triu_indices(TOKENS)
    entries = [grid.offsets(token).keys() for token in range(TOKENS)]
    both = [bool(entries[a] & entries[b]) for a, b in zip(first, second, strict=True)]
    np.testing.assert_array_equal(grid.share_entry(first, second), both)


@given(
    st.integers(1, 12).flatmap(lambda s: st.tuples(st.integers(s, 30), st.just(s))),
    st.integers(0, 200),
    st.integers(0, 60),
)
def test_any_grid(grid, token, more):
    window, stride = grid
    geometry = WindowGeometry(window, stride)
    offsets = geometry.offsets(token)
    assert all(0 <= i < window and e * stride + i == token for e, i in offsets.items())
    together = bool(offsets.keys() & geometry.offsets(token + more).keys())
    assert geometry.share_entry(np.array([token]), np.array([token + more])).tolist() == [together]
    # Each further stride of tokens closes exactly one more entry.
    assert geometry.num_entries(window + token + stride) == geometry.num_entries(window + token) + 1


def test_where_an_entry_is_rotated():
    assert WindowGeometry(8, 4).position(3).tolist() == [0, 4, 8]
    assert WindowGeometry(8, 4, "stride_start").position(3).tolist() == [4, 8, 12]
    assert WindowGeometry(8, 8, "stride_start").position(2).tolist() == [0, 8]


def test_phase_of_an_array():
    assert WindowGeometry(8, 6).phase(np.arange(8)).tolist() == [0, 1, 2, 3, 4, 5, 0, 1]


@pytest.mark.parametrize(
    ("window", "stride", "message"),
    [
        (8, 0, r"stride=0.*at least 1"),
        (8, -2, r"stride=-2"),
        (4, 8, r"window=4 is smaller than stride=8.*set window >= stride"),
        (0, 1, r"window=0"),
    ],
)
def test_impossible_grids_are_refused(window, stride, message):
    with pytest.raises(ValueError, match=message):
        WindowGeometry(window, stride)
