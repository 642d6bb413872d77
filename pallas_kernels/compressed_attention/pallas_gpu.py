# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Compressed attention on NVIDIA GPUs, forward and backward, in Triton.

A program takes a tile of queries of one head through the tiles of exact tokens and then of entries
that some query of it may read (arXiv:2205.14135); the others are not visited. Which those are is
computed beforehand, by tile. The backward pass makes the scores again, once by tiles of queries for
the gradient of the queries and once by tiles of rows for that of keys and values, so nothing is
added to by two programs.

Floor of the forward pass: 4 H operations for each head, query and row that it reads, and operands
and results once. Qwen3-0.6B with W8/S8 and a window of 16 (16 heads of 128, bfloat16) at T = 131072
reads T/16 entries on average: 8.8 TFLOP, 8.9 ms at 989 TFLOP/s (H100), while its 1.7 GB take 0.5 ms
at 3.35 TB/s. The backward pass makes 2.5 times the products. Lowered for CUDA and run in interpret
mode; not run on a GPU.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels import tiles, triton
from pallas_kernels.block_sizes import block_sizes
from pallas_kernels.compressed_attention.masks import Reads
from pallas_kernels.masks import NEVER
from pallas_kernels.tiles import Pair

LOWEST = float(jnp.finfo(jnp.float32).min)


class Blocks(NamedTuple):
    """How the scores are cut: queries, exact tokens and entries in a tile."""

    query: int
    token: int
    entry: int


class Spans(NamedTuple):
    """Tiles that meet, as first and one past the last.

    Attributes:
        rows: tiles of rows that each tile of queries may read, [B, C, 2].
        queries: tiles of queries that may read each tile of rows, [B, J, 2].
    """

    rows: Int[Array, "B C 2"]
    queries: Int[Array, "B J 2"]


def gpu_heuristic(head_dim: int) -> Blocks:
    """Tiles whose sums, L x H in float32, leave registers for the scores and what is multiplied."""
    sizes = block_sizes("compressed_attention", "gpu")
    length = min(max(sizes["sums"] // head_dim, 16), sizes["length"])
    return Blocks(length, length, length)


def _by_tile(x: Int[Array, "B X"], block: int) -> Int[Array, "B C L"]:
    return x.reshape(x.shape[0], -1, block)


def _spans(meet: Bool[Array, "B C J"]) -> Spans:
    def ends(meet: Array) -> Array:
        """First and one past the last along the last axis; none at all gives 0 and 0."""
        count = jnp.arange(meet.shape[-1])
        stop = jnp.max(jnp.where(meet, count + 1, 0), axis=-1)
        first = jnp.min(jnp.where(meet, count, stop[..., None]), axis=-1)
        return jnp.stack([first, stop], axis=-1).astype(jnp.int32)

    return Spans(ends(meet), ends(jnp.swapaxes(meet, 1, 2)))


def _meetings(reads: Reads, blocks: Blocks) -> tuple[Spans, Spans]:
    """Which tiles of exact tokens and of entries meet which tiles of queries, by their extremes."""
    position, since, segment = (_by_tile(x, blocks.query) for x in reads[:3])
    reading = position >= 0
    last = position.max(-1)[:, :, None]
    first = jnp.where(reading, since, NEVER).min(-1)[:, :, None]
    low = jnp.where(reading, segment, NEVER).min(-1)[:, :, None]
    high = jnp.where(reading, segment, -NEVER).max(-1)[:, :, None]

    def same_document(segment: Array) -> Array:
        return (segment.min(-1)[:, None] <= high) & (segment.max(-1)[:, None] >= low)

    documents = _by_tile(reads.token_segment, blocks.token)
    start = blocks.token * jnp.arange(documents.shape[1])
    near = (start <= last) & (start + blocks.token > first) & same_document(documents)
    end, documents = (_by_tile(x, blocks.entry) for x in reads[4:])
    far = (end.min(-1)[:, None] <= last) & same_document(documents)
    return _spans(near), _spans(far)


class Asked(NamedTuple):
    """What the queries of a tile read, see `Reads`."""

    position: Int[Array, "L"]
    since: Int[Array, "L"]
    segment: Int[Array, "L"]


def _ask(reads: Reads, b: Array, at: Any) -> Asked:
    return Asked(*(ref[triton.row(ref, b), at] for ref in reads[:3]))


def _token_mask(reads: Reads, asked: Asked, b: Array, j: Array, block: int) -> Array:
    rows = pl.ds(j * block, block)
    token = j * block + jax.lax.broadcasted_iota(jnp.int32, (1, block), 1)
    segment = reads.token_segment[triton.row(reads.token_segment, b), rows]
    near = (token <= asked.position[:, None]) & (token >= asked.since[:, None])
    return near & (segment[None] == asked.segment[:, None])


def _entry_mask(reads: Reads, asked: Asked, b: Array, j: Array, block: int) -> Array:
    rows = pl.ds(j * block, block)
    end, segment = (ref[triton.row(ref, b), rows] for ref in reads[4:])
    return (end[None] <= asked.position[:, None]) & (segment[None] == asked.segment[:, None])


# By kind of rows, in the order in which a query reads them.
MASKS = (_token_mask, _entry_mask)


def _scores(q: Array, k: Array, mask: Array) -> Array:
    return jnp.where(mask, triton.dot(q, k, (1, 1)) * q.shape[1] ** -0.5, -jnp.inf)


def _for_each(span: Any, b: Array, i: Array, step: Any, state: Any) -> Any:
    """Runs step(tile, state) over a span of tiles."""
    at = triton.row(span, b)
    return jax.lax.fori_loop(span[at, i, 0], span[at, i, 1], step, state)


def _forward_kernel(query, pairs, reads, spans, sink, out, lse, *, blocks):
    c, n, b = (pl.program_id(axis) for axis in range(3))
    at = pl.ds(c * blocks.query, blocks.query)
    q, asked = query[b, at, n, :], _ask(reads, b, at)
    head = jax.lax.div(n, query.shape[2] // pairs[0][0].shape[2])
    state = (
        jnp.full(blocks.query, LOWEST if sink is None else sink[n], jnp.float32),
        jnp.full(blocks.query, 0.0 if sink is None else 1.0, jnp.float32),
        jnp.zeros(q.shape, jnp.float32),
    )
    for pair, span, mask, block in zip(pairs, spans, MASKS, blocks[1:], strict=True):

        def step(j, state, pair=pair, mask=mask, block=block):
            top, total, mixed = state
            rows = pl.ds(j * block, block)
            k, v = (ref[b, rows, head, :] for ref in (pair[0], pair[-1]))
            scores = _scores(q, k, mask(reads, asked, b, j, block))
            new = jnp.maximum(top, jnp.max(scores, axis=1))
            weight, scale = jnp.exp(scores - new[:, None]), jnp.exp(top - new)
            given = triton.dot(weight.astype(v.dtype), v, (1, 0))
            return new, total * scale + jnp.sum(weight, axis=1), mixed * scale[:, None] + given

        state = _for_each(span, b, c, step, state)
    top, total, mixed = state
    total = jnp.where(total > 0, total, 1.0)
    out[b, at, n, :] = (mixed / total[:, None]).astype(out.dtype)
    lse[b, n, at] = top + jnp.log(total)


def _by_score(q, k, v, mask, ct, lse, lost):
    """Softmax weights of a tile again, and the gradient of the loss by its scaled scores."""
    weight = jnp.exp(_scores(q, k, mask) - lse[:, None])
    pulled = triton.dot(ct, v, (1, 1))
    return weight, (weight * (pulled - lost[:, None]) * q.shape[1] ** -0.5).astype(q.dtype)


def _query_kernel(query, pairs, reads, spans, ct, lse, lost, d_query, *, blocks):
    c, n, b = (pl.program_id(axis) for axis in range(3))
    at = pl.ds(c * blocks.query, blocks.query)
    q, upstream, asked = query[b, at, n, :], ct[b, at, n, :], _ask(reads, b, at)
    kept = lse[b, n, at], lost[b, n, at]
    head = jax.lax.div(n, query.shape[2] // pairs[0][0].shape[2])
    total = jnp.zeros(q.shape, jnp.float32)
    for pair, span, mask, block in zip(pairs, spans, MASKS, blocks[1:], strict=True):

        def step(j, total, pair=pair, mask=mask, block=block):
            rows = pl.ds(j * block, block)
            k, v = (ref[b, rows, head, :] for ref in (pair[0], pair[-1]))
            _, by_score = _by_score(q, k, v, mask(reads, asked, b, j, block), upstream, *kept)
            return total + triton.dot(by_score, k, (1, 0))

        total = _for_each(span, b, c, step, total)
    d_query[b, at, n, :] = total.astype(d_query.dtype)


def _rows_kernel(query, pair, reads, span, ct, lse, lost, *grads, mask, blocks, block):
    j, head, b = (pl.program_id(axis) for axis in range(3))
    rows = pl.ds(j * block, block)
    k, v = (ref[b, rows, head, :] for ref in (pair[0], pair[-1]))
    groups = query.shape[2] // pair[0].shape[2]

    def step(c, sums):
        at = pl.ds(c * blocks.query, blocks.query)
        seen = mask(reads, _ask(reads, b, at), b, j, block)

        def add(g, sums):
            n = head * groups + g
            q, upstream = query[b, at, n, :], ct[b, at, n, :]
            kept = lse[b, n, at], lost[b, n, at]
            weight, by_score = _by_score(q, k, v, seen, upstream, *kept)
            by_key = triton.dot(by_score, q, (0, 0))
            by_value = triton.dot(weight.astype(v.dtype), upstream, (0, 0))
            parts = (by_key, by_value) if len(pair) > 1 else (by_key + by_value,)
            return tuple(map(jnp.add, sums, parts))

        return jax.lax.fori_loop(0, groups, add, sums)

    zeros = jnp.zeros(k.shape, jnp.float32)
    for ref, x in zip(grads, _for_each(span, b, j, step, (zeros,) * len(pair)), strict=True):
        ref[b, rows, head, :] = x.astype(ref.dtype)


def _whole_tiles(query, near, entry, reads, blocks):
    """Every axis padded to whole tiles; what fills them reads nothing and is not read."""

    def pad(x: Array, block: int, fill: int = 0) -> Array:
        if not x.shape[1]:  # no entry yet: a slot that holds none spares the kernels this case
            x = jnp.full((x.shape[0], 1, *x.shape[2:]), fill, x.dtype)
        return tiles.padded(x, block, fill)

    sizes = (blocks.query,) * 3 + (blocks.token,) + (blocks.entry,) * 2
    fills = (-1, 0, 0, 0, NEVER, 0)
    return (
        pad(query, blocks.query),
        tuple(pad(x, blocks.token) for x in near),
        tuple(pad(x, blocks.entry) for x in entry),
        Reads(*map(pad, reads, sizes, fills)),
    )


def _struct(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _pairs_read(query: Array, entries: int, blocks: Blocks) -> int:
    """Scores that are made: half of the entries, and two tiles of exact tokens a query."""
    batch, queries, heads, _ = query.shape
    return batch * heads * queries * (entries // 2 + 2 * blocks.token)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _attend(query, near, entry, reads, sink, blocks, interpret):
    return _forward(query, near, entry, reads, sink, blocks, interpret)[0]


def _forward(query, near, entry, reads, sink, blocks, interpret):
    q, *pairs, asked = _whole_tiles(query, near, entry, reads, blocks)
    batch, queries, heads, head_dim = q.shape
    count = _pairs_read(q, entry[0].shape[1], blocks)
    wide = None if sink is None else sink.astype(jnp.float32)
    mixed, lse = triton.call(
        functools.partial(_forward_kernel, blocks=blocks),
        (q, tuple(pairs), asked, _row_spans(asked, blocks), wide),
        (_struct(q.shape, q.dtype), _struct((batch, heads, queries), jnp.float32)),
        grid=(queries // blocks.query, heads, batch),
        flops=4 * head_dim * count,
        exponentials=count,
        interpret=interpret,
    )
    mixed = mixed[:, : query.shape[1]]
    return mixed, (query, near, entry, reads, sink, mixed, lse)


def _row_spans(reads: Reads, blocks: Blocks) -> tuple[Array, Array]:
    near, far = _meetings(reads, blocks)
    return near.rows, far.rows


def _backward(blocks, interpret, kept, cotangent):
    query, near, entry, reads, sink, mixed, lse = kept
    lost = jnp.einsum("bqnh,bqnh->bnq", mixed, cotangent, preferred_element_type=jnp.float32)
    d_sink = None
    if sink is not None:
        taken = jnp.exp(sink.astype(jnp.float32)[:, None] - lse[..., : query.shape[1]])
        d_sink = -jnp.sum(taken * lost, axis=(0, 2)).astype(sink.dtype)
    q, *pairs, asked = _whole_tiles(query, near, entry, reads, blocks)
    ct = tiles.padded(cotangent, blocks.query)
    lost = jnp.pad(lost, ((0, 0), (0, 0), (0, q.shape[1] - query.shape[1])))
    batch, queries, heads, head_dim = q.shape
    count = _pairs_read(q, entry[0].shape[1], blocks)
    spans = _meetings(asked, blocks)
    run = functools.partial(triton.call, exponentials=count, interpret=interpret)
    d_query = run(
        functools.partial(_query_kernel, blocks=blocks),
        (q, tuple(pairs), asked, tuple(span.rows for span in spans), ct, lse, lost),
        _struct(q.shape, q.dtype),
        grid=(queries // blocks.query, heads, batch),
        flops=6 * head_dim * count,
    )
    grads = []
    for pair, span, mask, block in zip(pairs, spans, MASKS, blocks[1:], strict=True):
        rows, kv_heads = pair[0].shape[1:3]
        grads.append(
            run(
                functools.partial(_rows_kernel, mask=mask, blocks=blocks, block=block),
                (q, pair, asked, span.queries, ct, lse, lost),
                tuple(_struct(x.shape, x.dtype) for x in pair),
                grid=(rows // block, kv_heads, batch),
                flops=8 * head_dim * count,
            )
        )
    d_near, d_entry = (
        tuple(d[:, : x.shape[1]] for d, x in zip(grad, pair, strict=True))
        for grad, pair in zip(grads, (near, entry), strict=True)
    )
    return d_query[:, : query.shape[1]], d_near, d_entry, None, d_sink


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
    interpret: Any = False,
) -> Float[Array, "B Q N H"]:
    """See `api.compressed_attention`; `blocks` comes from the shapes unless given.

    Raises:
        NotImplementedError: if there is no query, if operands are float64, or if H is no power of
            two from 16 on.
    """
    del span  # the tiles that a query reads are computed from its positions
    triton.check_dtypes(query=query)
    triton.check_head_dim(query.shape[3])
    if not query.size or not near[0].shape[1]:
        raise NotImplementedError(f"query.shape={query.shape}: there is nothing to do.")
    blocks = blocks or gpu_heuristic(query.shape[3])
    return _attend(query, near, entry, reads, sink, blocks, interpret)
