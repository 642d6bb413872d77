# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention over picked entries by tiles of queries, in plain JAX: rows are gathered by tile.

Time is Q x (window + P), memory the operands and one tile of gathered rows. The gradient runs over
the same tiles and adds into one array a operand, in place: a plain transpose of the loop would add
an array as long as the sequence for every tile.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from pallas_kernels import tiles
from pallas_kernels.masks import NEVER
from pallas_kernels.selected_attention.config import blocked_heuristic
from pallas_kernels.selected_attention.reference import local_mask, mix
from pallas_kernels.tiles import Pair


def with_window(
    x: Shaped[Array, "B X ..."], queries: int, before: int, block: int, fill: int = 0
) -> Shaped[Array, "B X2 ..."]:
    """The `before` rows ahead of the first query, or filling, then whole tiles of queries."""
    extra = x.shape[1] - queries - before
    x = x[:, max(extra, 0) :]
    missing = (max(-extra, 0), -queries % block)
    return jnp.pad(x, [(0, 0), missing] + [(0, 0)] * (x.ndim - 2), constant_values=fill)


def _without_window(
    x: Shaped[Array, "B X2 ..."], count: int, queries: int, before: int
) -> Shaped[Array, "B X ..."]:
    """Undoes `with_window` for an array of `count` rows; rows that were left out are zeros."""
    extra = count - queries - before
    x = x[:, max(-extra, 0) : before + queries]
    return jnp.pad(x, [(0, 0), (max(extra, 0), 0)] + [(0, 0)] * (x.ndim - 2))


def _tile(q, near, far, sink, at, seg, near_seg, window):
    """Output of one tile of queries, and the only place that says what a tile reads."""
    return mix(q, near, local_mask(seg, near_seg, window), far, at >= 0, sink)


def _operands(near, entry, index, segment, window, block):
    """What every tile shares, and a function that cuts out what one tile reads."""
    queries, length = index.shape[1], window - 1 + block
    near = tuple(with_window(x, queries, window - 1, block) for x in near)
    every = with_window(segment, queries, window - 1, block, NEVER)
    # A query that fills the last tile reads the token that does, so that it has one to read.
    own = tiles.split(segment[:, segment.shape[1] - queries :], block, NEVER)

    def read(start: Array, at: Array) -> tuple[Pair, tuple[Array, ...], Array]:
        cut = functools.partial(
            jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=length, axis=1
        )
        return tuple(map(cut, near)), tuple(tiles.take_rows(x, at) for x in entry), cut(every)

    return jnp.arange(0, queries, block), tiles.split(index, block, -1), own, read


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7))
def _attend(query, near, entry, index, segment, sink, window, block):
    starts, indices, segments, read = _operands(near, entry, index, segment, window, block)

    def tile(args: tuple[Array, ...]) -> Array:
        q, start, at, seg = args
        near, far, near_seg = read(start, at)
        return _tile(q, near, far, sink, at, seg, near_seg, window)

    mixed = jax.lax.map(tile, (tiles.split(query, block), starts, indices, segments))
    return tiles.join(mixed, query.shape[1])


def _forward(query, near, entry, index, segment, sink, window, block):
    kept = query, near, entry, index, segment, sink
    return _attend(*kept, window, block), kept


def backward(window: int, block: int, kept: tuple, cotangent: Array) -> tuple:
    """Gradients of all operands by tiles of `block` queries; `kept` are the operands."""
    query, near, entry, index, segment, sink = kept
    starts, indices, segments, read = _operands(near, entry, index, segment, window, block)
    wide = jnp.promote_types(query.dtype, jnp.float32)

    def zeros(x: Array) -> Array:
        return jnp.zeros(x.shape, wide)

    def step(total: tuple, args: tuple[Array, ...]) -> tuple[tuple, Array]:
        d_near, d_entry, d_sink = total
        q, ct, start, at, seg = args
        near, far, near_seg = read(start, at)
        _, vjp = jax.vjp(
            lambda q, near, far, sink: _tile(q, near, far, sink, at, seg, near_seg, window),
            q,
            near,
            far,
            sink,
        )
        d_q, near, far, at_sink = vjp(ct)
        d_near = tuple(tiles.add_slice(t, start, x) for t, x in zip(d_near, near, strict=True))
        d_entry = tuple(tiles.add_rows(t, at, x) for t, x in zip(d_entry, far, strict=True))
        return (d_near, d_entry, jax.tree.map(jnp.add, d_sink, at_sink)), d_q

    queries = query.shape[1]
    padded = tuple(zeros(with_window(x, queries, window - 1, block)) for x in near)
    total = padded, tuple(map(zeros, entry)), jax.tree.map(jnp.zeros_like, sink)
    args = tiles.split(query, block), tiles.split(cotangent, block), starts, indices, segments
    (d_near, d_entry, d_sink), d_query = jax.lax.scan(step, total, args)
    d_near = tuple(
        _without_window(x, y.shape[1], queries, window - 1).astype(y.dtype)
        for x, y in zip(d_near, near, strict=True)
    )
    d_entry = tuple(x.astype(y.dtype) for x, y in zip(d_entry, entry, strict=True))
    return tiles.join(d_query, queries), d_near, d_entry, None, None, d_sink


_attend.defvjp(_forward, backward)


def selected_attention(
    query: Float[Array, "B Q N H"],
    near: Pair,
    entry: Pair,
    index: Int[Array, "B Q P"],
    segment: Int[Array, "B X"],
    sink: Float[Array, "N"] | None,
    *,
    window: int,
    block: int | None = None,
) -> Float[Array, "B Q N H"]:
    """See `api.selected_attention`; `block` queries a tile, from the shapes unless given."""
    kv_heads, picks = near[0].shape[2], index.shape[2]
    block = block or blocked_heuristic(query.shape, kv_heads, window, picks)
    return _attend(query, near, entry, index, segment, sink, window, block)
