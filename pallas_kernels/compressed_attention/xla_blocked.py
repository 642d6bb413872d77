# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Compressed attention in plain JAX without a T x T array.

Where all scores of the local blocks and the entries are few they are made in one piece. Otherwise
the scores exist for one tile of queries and one tile of rows at a time, and again in the backward
pass (arXiv:2205.14135): memory is that of operands, results and their gradients. Tiles of entries
that no query of a tile may see are not computed; exact tokens are read from the first that some
query of the tile reads.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels import tiles
from pallas_kernels.compressed_attention import one_piece
from pallas_kernels.compressed_attention.config import ONE_PIECE, Blocks, blocked_heuristic
from pallas_kernels.compressed_attention.masks import Reads
from pallas_kernels.masks import NEVER, entry_mask, token_mask
from pallas_kernels.products import product
from pallas_kernels.tiles import Pair

State = tuple[Array, ...]


class Ask(NamedTuple):
    """What the queries of one tile read, see `Reads`."""

    position: Int[Array, "B L"]
    since: Int[Array, "B L"]
    segment: Int[Array, "B L"]


class Rows(NamedTuple):
    """Exact tokens or entries, cut into tiles.

    Attributes:
        length: rows in a tile.
        bounds: from what a tile of queries asks, its first row and one past its last tile.
        mask: from what they ask, and the first row of a tile, which of its rows they read.
    """

    length: int
    bounds: Callable[[Ask], tuple[Int[Array, ""], Int[Array, ""]]]
    mask: Callable[[Ask, Int[Array, ""]], Bool[Array, "B L X"]]


def _cut(x: Array, start: Int[Array, ""], length: int) -> Array:
    return jax.lax.dynamic_slice_in_dim(x, start, length, axis=1)


def _token_rows(reads: Reads, length: int) -> Rows:
    tokens = reads.token_segment.shape[1]

    def bounds(ask: Ask) -> tuple[Array, Array]:
        stop = jnp.clip(jnp.max(ask.position) + 1, 0, tokens)
        first = jnp.min(jnp.where(ask.position < 0, tokens, ask.since))
        return first, (stop - first + length - 1) // length

    def mask(ask: Ask, start: Array) -> Array:
        return token_mask(
            *ask, start + jnp.arange(length)[None], _cut(reads.token_segment, start, length)
        )

    return Rows(length, bounds, mask)


def _entry_rows(reads: Reads, length: int) -> Rows:
    end = tiles.split(reads.end, length, NEVER)
    segment = tiles.split(reads.entry_segment, length, NEVER)
    never = segment == NEVER  # what fills the last tile belongs to no document
    soonest, low = end.min((1, 2)), segment.min((1, 2))
    high = jnp.where(never, -NEVER, segment).max((1, 2))
    count = jnp.arange(len(soonest))

    def bounds(ask: Ask) -> tuple[Array, Array]:
        seen = soonest <= jnp.max(ask.position)
        seen &= (low <= jnp.max(ask.segment)) & (high >= jnp.min(ask.segment))
        first = jnp.min(jnp.where(seen, count, len(soonest)))
        return first * length, jnp.max(jnp.where(seen, count + 1, first)) - first

    def mask(ask: Ask, start: Array) -> Array:
        end, segment = _cut(reads.end, start, length), _cut(reads.entry_segment, start, length)
        return entry_mask(ask.position, ask.segment, end, segment)

    return Rows(length, bounds, mask)


def _for_each_tile(ask: Ask, rows: Rows, count: int, step: Callable, state: State) -> State:
    """Runs step(state, first row, mask) over the tiles of rows that the queries may read."""
    first, steps = rows.bounds(ask)

    def body(j: Array, state: State) -> State:
        wanted = first + j * rows.length
        # The last tile ends with the rows: those that it shares with the one before are masked.
        start = jnp.minimum(wanted, count - rows.length)
        new = start + jnp.arange(rows.length) >= wanted
        return step(state, start, rows.mask(ask, start) & new)

    return jax.lax.fori_loop(0, steps, body, state)


def _scores(
    q: Float[Array, "B L K G H"], k: Float[Array, "B X K H"], mask: Bool[Array, "B L X"]
) -> Float[Array, "B K L G X"]:
    scores = product("blkgh,bxkh->bklgx", q, k)
    return jnp.where(mask[:, None, :, None], scores * q.shape[-1] ** -0.5, -jnp.inf)


def _forward_tile(q, ask: Ask, operands, sink):
    """Output [B, L, K, G, H] and logsumexp [B, K, L, G] of one tile of queries."""
    batch, length, kv_heads, groups, head_dim = q.shape
    wide = jnp.promote_types(q.dtype, jnp.float32)
    shape = (batch, kv_heads, length, groups)
    top = jnp.full(shape, jnp.finfo(wide).min, wide)
    total = jnp.zeros(shape, wide)
    if sink is not None:  # the first to enter the running softmax, and it gives nothing
        top = jnp.broadcast_to(sink.astype(wide).reshape(kv_heads, 1, groups), shape)
        total = jnp.ones(shape, wide)
    state = top, total, jnp.zeros((*shape, head_dim), wide)
    for pair, rows in operands:
        key, value = pair[0], pair[-1]

        def step(state, start, mask, key=key, value=value, rows=rows):
            top, total, mixed = state
            scores = _scores(q, _cut(key, start, rows.length), mask)
            new = jnp.maximum(top, scores.max(-1))
            weights, scale = jnp.exp(scores - new[..., None]), jnp.exp(top - new)
            given = product(
                "bklgx,bxkh->bklgh", weights.astype(value.dtype), _cut(value, start, rows.length)
            )
            total = total * scale + weights.sum(-1)
            return new, total, mixed * scale[..., None] + given

        state = _for_each_tile(ask, rows, key.shape[1], step, state)
    top, total, mixed = state
    total = jnp.where(total > 0, total, 1)
    mixed = (mixed / total[..., None]).transpose(0, 2, 1, 3, 4)
    return mixed, top + jnp.log(total)


def _backward_tile(q, ask: Ask, operands, out_ct, lse, lost, grads):
    """Adds one tile of queries to the gradients of the rows; returns them and that of q.

    Args:
        q: queries of the tile.
        ask: what they read.
        operands: pairs and rows.
        out_ct: cotangent of their output.
        lse: logsumexp of their scores, [B, K, L, G].
        lost: sum over channels of output times cotangent, [B, K, L, G].
        grads: for each pair the gradients so far.
    """
    wide = lse.dtype
    sums = jnp.zeros(q.shape, wide)
    done = []
    for (pair, rows), grad in zip(operands, grads, strict=True):

        def step(state, start, mask, pair=pair, rows=rows):
            d_q, d_key, *d_value = state
            key, value = (_cut(pair[i], start, rows.length) for i in (0, -1))
            weights = jnp.exp(_scores(q, key, mask) - lse[..., None])
            by_value = product("bklgx,blkgh->bxkh", weights.astype(value.dtype), out_ct)
            pulled = product("blkgh,bxkh->bklgx", out_ct, value)
            by_score = weights * (pulled - lost[..., None]) * q.shape[-1] ** -0.5
            by_score = by_score.astype(q.dtype)
            d_q += product("bklgx,bxkh->blkgh", by_score, key)
            by_key = product("bklgx,blkgh->bxkh", by_score, q)
            if not d_value:
                return d_q, tiles.add_slice(d_key, start, by_key + by_value)
            return (
                d_q,
                tiles.add_slice(d_key, start, by_key),
                tiles.add_slice(d_value[0], start, by_value),
            )

        sums, *grad = _for_each_tile(ask, rows, pair[0].shape[1], step, (sums, *grad))
        done.append(tuple(grad))
    return done, sums


def _operands(near: Pair, entry: Pair, reads: Reads, blocks: Blocks) -> list[tuple[Pair, Rows]]:
    found = [(near, _token_rows(reads, blocks.token))]
    if entry[0].shape[1]:
        found.append((entry, _entry_rows(reads, blocks.entry)))
    return found


def _ask(reads: Reads, start: Int[Array, ""], wanted: Int[Array, ""], length: int) -> Ask:
    """What a tile of queries reads; those of the tile before it read nothing again."""
    position, since, segment = (_cut(x, start, length) for x in reads[:3])
    again = start + jnp.arange(length) < wanted
    return Ask(jnp.where(again, -1, position), since, segment)


def _grouped(x: Float[Array, "B L N H"], kv_heads: int) -> Float[Array, "B L K G H"]:
    return x.reshape(*x.shape[:2], kv_heads, -1, x.shape[-1])


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(query, near, entry, reads, sink, blocks):
    return _forward(query, near, entry, reads, sink, blocks)[0]


def _forward(query, near, entry, reads, sink, blocks):
    batch, queries, heads, _ = query.shape
    kv_heads, length = near[0].shape[2], blocks.query
    operands = _operands(near, entry, reads, blocks)

    def tile(c: Array, state: State) -> State:
        mixed, lse = state
        start = jnp.minimum(c * length, queries - length)
        q = _grouped(_cut(query, start, length), kv_heads)
        tile_mixed, tile_lse = _forward_tile(q, _ask(reads, start, start, length), operands, sink)
        update = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=1, start_index=start)
        tile_mixed = tile_mixed.reshape(batch, length, heads, -1).astype(mixed.dtype)
        tile_lse = tile_lse.transpose(0, 2, 1, 3).reshape(batch, length, heads)
        return update(mixed, tile_mixed), update(lse, tile_lse)

    wide = jnp.promote_types(query.dtype, jnp.float32)
    state = jnp.zeros(query.shape, near[-1].dtype), jnp.zeros(query.shape[:3], wide)
    mixed, lse = jax.lax.fori_loop(0, -(-queries // length), tile, state)
    return mixed, (query, near, entry, reads, sink, mixed, lse)


def _backward(blocks, kept, cotangent):
    query, near, entry, reads, sink, mixed, lse = kept
    queries, kv_heads, length = query.shape[1], near[0].shape[2], blocks.query
    operands = _operands(near, entry, reads, blocks)
    lost = product("bqnh,bqnh->bqn", mixed, cotangent)

    def tile(c: Array, state):
        d_query, grads = state
        wanted = c * length
        start = jnp.minimum(wanted, queries - length)
        q, ct = (_grouped(_cut(x, start, length), kv_heads) for x in (query, cotangent))
        ask = _ask(reads, start, wanted, length)
        tile_lse, tile_lost = (
            _cut(x, start, length).reshape(x.shape[0], length, kv_heads, -1).transpose(0, 2, 1, 3)
            for x in (lse, lost)
        )
        grads, d_q = _backward_tile(q, ask, operands, ct, tile_lse, tile_lost, grads)
        return tiles.add_slice(
            d_query, start, d_q.reshape(*d_q.shape[:2], -1, d_q.shape[-1])
        ), grads

    def zeros(x: Array) -> Array:
        return jnp.zeros(x.shape, lse.dtype)

    state = zeros(query), [tuple(map(zeros, pair)) for pair, _ in operands]
    d_query, grads = jax.lax.fori_loop(0, -(-queries // length), tile, state)
    d_sink = None
    if sink is not None:
        taken = jnp.exp(sink.astype(lse.dtype) - lse)
        d_sink = -jnp.sum(taken * lost, axis=(0, 1)).astype(sink.dtype)
    d_near, d_entry = (*grads, entry)[:2]
    cast = functools.partial(jax.tree.map, lambda d, x: d.astype(x.dtype))
    return cast(d_query, query), cast(d_near, near), cast(d_entry, entry), None, d_sink


_attend.defvjp(_forward, _backward)


def compressed_attention(
    query: Float[Array, "B Q N H"],
    near: Pair,
    entry: Pair,
    reads: Reads,
    sink: Float[Array, "N"] | None,
    *,
    span: int | None,
    blocks: Blocks | None = None,
) -> Float[Array, "B Q N H"]:
    """See `api.compressed_attention`; `blocks` comes from the shapes unless given."""
    batch, queries, heads, _ = query.shape
    tokens, entries = near[0].shape[1], entry[0].shape[1]
    if blocks is None and queries:
        columns = tokens if span is None else min(2 * span, tokens)
        if batch * queries * heads * (columns + entries) <= ONE_PIECE:
            return one_piece.compressed_attention(query, near, entry, reads, sink, span=span)
        blocks = blocked_heuristic(query.shape, tokens, entries, span)
    return _attend(query, near, entry, reads, sink, blocks)
