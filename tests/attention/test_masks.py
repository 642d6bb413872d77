# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Who may read what, and where RoPE turns it."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.compressed_attention.masks import reads
from pallas_kernels.masks import NEVER, entry_mask, token_mask
from phasejax.attention.masks import LocalSpan
from phasejax.attention.rope import rotate
from phasejax.compress.geometry import WindowGeometry

TOKENS = 30
GRIDS = [(8, 8), (8, 4), (8, 6), (2, 2), (12, 12), (1, 1)]
SPANS = [LocalSpan(16), LocalSpan(12, tail_only=True), LocalSpan(None), LocalSpan(11)]


def masks(position, token, end, span: LocalSpan):
    """Whether queries read tokens and entries, [Q, T] and [Q, E]."""
    position, token, end = (jnp.asarray(x)[None] for x in (position, token, end))
    zeros = jnp.zeros_like
    found = reads(
        position, zeros(position), zeros(token), end, zeros(end),
        window=span.size, tail_only=span.tail_only,
    )  # fmt: skip
    near = token_mask(*found[:3], token, found.token_segment)
    far = entry_mask(found.position, found.segment, found.end, found.entry_segment)
    return np.asarray(near[0]), np.asarray(far[0])


def masks_of(window: int, stride: int, span: LocalSpan):
    grid = WindowGeometry(window, stride)
    token = np.arange(TOKENS)
    return masks(token, token, grid.end(grid.num_entries(TOKENS)), span)


@pytest.mark.parametrize(("window", "stride"), GRIDS)
def test_an_entry_is_seen_from_its_last_token_on(window, stride):
    _, far = masks_of(window, stride, LocalSpan(16))
    for entry in range(far.shape[1]):
        last = entry * stride + window - 1
        assert far[:, entry].tolist() == [query >= last for query in range(TOKENS)]


@pytest.mark.parametrize(("window", "stride"), GRIDS)
@pytest.mark.parametrize("span", SPANS, ids=str)
def test_no_token_is_lost_and_none_is_seen_early(window, stride, span):
    near, far = masks_of(window, stride, span)
    grid = WindowGeometry(window, stride)
    for query in range(TOKENS):
        exact = set(np.flatnonzero(near[query]))
        entries = np.flatnonzero(far[query])
        compressed = {t for e in entries for t in range(e * stride, e * stride + window)}
        assert exact | compressed == set(range(query + 1))
        if span.tail_only:
            assert not exact & compressed
            assert len(exact) <= window - 1
        elif span.size is not None:
            assert exact == set(range(max(0, query - span.size + 1), query + 1))
        assert grid.num_entries(query + 1) == len(entries)


def test_padding_covers_nothing_and_is_never_read():
    query, token = np.array([2, 3, 8, 11]), np.array([0, 3, 4])
    near, far = masks(query, token, np.array([3, NEVER, 11]), LocalSpan(16, tail_only=True))
    assert near.astype(int).tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0]]
    assert far.astype(int).tolist() == [[0, 0, 0], [1, 0, 0], [1, 0, 0], [1, 0, 1]]
    near, _ = masks(query, token, np.zeros(0, np.int32), LocalSpan(16, tail_only=True))
    assert near.astype(int).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1]]


def test_a_query_before_every_token_reads_nothing():
    near, far = masks(np.array([-1]), np.arange(3), np.array([0, 1]), LocalSpan(None))
    assert not near.any()
    assert not far.any()


def test_a_query_reads_at_least_itself():
    with pytest.raises(ValueError, match=r"size=0.*size >= 1"):
        LocalSpan(0)


@pytest.mark.parametrize("rotary_dim", [0, 2, 8])
def test_rotation_is_by_pairs_of_channels(rotary_dim):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 5, 3, 8)).astype(np.float32)
    position = np.array([0, 1, 7, 100, 5])
    found = rotate(jnp.asarray(x), jnp.asarray(position), theta=100.0, rotary_dim=rotary_dim)
    wanted = x.astype(np.complex128)
    half = rotary_dim // 2
    for i in range(half):
        turned = x[..., i] + 1j * x[..., half + i]
        turned = turned * np.exp(1j * position * 100.0 ** (-i / half))[:, None]
        wanted[..., i], wanted[..., half + i] = turned.real, turned.imag
    np.testing.assert_allclose(found, wanted.real, rtol=1e-5, atol=1e-5)


def test_scores_depend_on_distance_alone():
    q, k = np.random.default_rng(1).normal(size=(2, 1, 1, 1, 16)).astype(np.float32)
    turn = lambda x, p: rotate(jnp.asarray(x), jnp.array([p]), theta=1e4, rotary_dim=16)  # noqa: E731
    scores = [float(jnp.vdot(turn(q, p + 6), turn(k, p))) for p in (0, 3, 50)]
    np.testing.assert_allclose(scores, scores[0], rtol=1e-4)
    assert abs(scores[0] - float(jnp.vdot(turn(q, 5), turn(k, 0)))) > 1e-3
