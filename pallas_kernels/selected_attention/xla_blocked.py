# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention over picked entries by tiles of queries, in plain JAX: rows are gathered by tile.

Time is T x (window + P), memory the operands and one tile of gathered rows. The gradient runs over
the same tiles and adds into one array a operand, in place: a plain transpose of the loop would add
an array as long as the sequence for every tile.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels import tiles
from pallas_kernels.selected_attention.config import blocked_heuristic
from pallas_kernels.selected_attention.reference import Pair, local_mask, mix


def _before(x: Array, window: int, block: int) -> Array:
    """Room for the window before the first token, and whole tiles after."""
    x = tiles.padded(x, block)
    return jnp.pad(x, [(0, 0), (window - 1, 0)] + [(0, 0)] * (x.ndim - 2))


def _tile(q, near, far, sink, start, at, seg, near_seg, window):
    """Output of one tile of queries, and the only place that says what a tile reads."""
    position = start + jnp.arange(q.shape[1])
    token = start - (window - 1) + jnp.arange(near_seg.shape[1])
    return mix(q, near, local_mask(position, token, seg, near_seg, window), far, at >= 0, sink)


def _operands(near, entry, index, segment, window, block):
    """What every tile shares, and a function that cuts out what one tile reads."""
    length = window - 1 + block
    near = tuple(_before(x, window, block) for x in near)
    before = _before(segment, window, block)

    def read(start: Array, at: Array) -> tuple[Pair, Pair, Array]:
        cut = functools.partial(
            jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=length, axis=1
        )
        return tuple(map(cut, near)), tuple(tiles.take_rows(x, at) for x in entry), cut(before)

    starts = jnp.arange(0, segment.shape[1], block)
    return starts, tiles.split(index, block, -1), tiles.split(segment, block), read


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7))
def _attend(query, near, entry, index, segment, sink, window, block):
    starts, indices, segments, read = _operands(near, entry, index, segment, window, block)

    def tile(args: tuple[Array, ...]) -> Array:
        q, start, at, seg = args
        near, far, near_seg = read(start, at)
        return _tile(q, near, far, sink, start, at, seg, near_seg, window)

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
            lambda q, near, far, sink: _tile(q, near, far, sink, start, at, seg, near_seg, window),
            q,
            near,
            far,
            sink,
        )
        d_q, near, far, at_sink = vjp(ct)
        d_near = tuple(tiles.add_slice(t, start, x) for t, x in zip(d_near, near, strict=True))
        d_entry = tuple(tiles.add_rows(t, at, x) for t, x in zip(d_entry, far, strict=True))
        return (d_near, d_entry, jax.tree.map(jnp.add, d_sink, at_sink)), d_q

    padded = tuple(zeros(_before(x, window, block)) for x in near)
    total = padded, tuple(map(zeros, entry)), jax.tree.map(jnp.zeros_like, sink)
    args = tiles.split(query, block), tiles.split(cotangent, block), starts, indices, segments
    (d_near, d_entry, d_sink), d_query = jax.lax.scan(step, total, args)
    tokens = query.shape[1]
    d_near = tuple(
        x[:, window - 1 : window - 1 + tokens].astype(y.dtype)
        for x, y in zip(d_near, near, strict=True)
    )
    d_entry = tuple(x.astype(y.dtype) for x, y in zip(d_entry, entry, strict=True))
    return tiles.join(d_query, tokens), d_near, d_entry, None, None, d_sink


_attend.defvjp(_forward, backward)


def selected_attention(
    query: Float[Array, "B T N H"],
    near: Pair,
    entry: Pair,
    index: Int[Array, "B T P"],
    segment: Int[Array, "B T"],
    sink: Float[Array, "N"] | None,
    *,
    window: int,
    block: int | None = None,
) -> Float[Array, "B T N H"]:
    """See `api.selected_attention`; `block` queries a tile, from the shapes unless given."""
    kv_heads, picks = near[0].shape[2], index.shape[2]
    block = block or blocked_heuristic(query.shape, kv_heads, window, picks)
    return _attend(query, near, entry, index, segment, sink, window, block)
