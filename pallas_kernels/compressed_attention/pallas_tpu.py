# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Compressed attention on TPU, forward and backward: one softmax over tiles of tokens and entries.

Scores are transposed: rows that are read lie in sublanes, and lanes are the queries of a tile times
some heads that share keys. So what the running softmax keeps is one number a lane, and maxima and
sums run down the sublanes. Exact tokens and entries go through the same steps; a token is an entry
that ends with itself, and is too old for queries that read since later.

Which tiles some query of a tile may see is found beforehand, and the first and last of them are
prefetched as scalars. Blocks of several tiles are fetched; inside of one, a loop runs over the tiles
between these bounds alone, and blocks outside of them are neither fetched nor computed.

Floor for each pair of a head's query and a row that it reads: 4 H operations forward; backward makes
the scores again in both kernels, 14 H. Qwen3-0.6B (N = 16, H = 128, window 16, W8/S8) at T = 131072
has 17.2 G pairs: 8.8 TFLOP, 45 ms at 197 TFLOP/s (v5e), and about 10 vector operations a pair, 45 ms
at 3.8 T/s. Bytes are few: 2 H K values for each tile of queries and visible entry, 4.3 GB a head of
256 queries, 42 ms at 819 GB/s. DeepSeek-V4-Flash (N = 64, H = 512, one array) with HCA (E = T / 128)
has 5.4 G pairs, 11 TFLOP, 56 ms.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels import tiles
from pallas_kernels.compressed_attention.config import TpuBlocks, tpu_heuristic
from pallas_kernels.compressed_attention.masks import Reads
from pallas_kernels.compressed_attention.reference import Pair
from pallas_kernels.masks import NEVER

VMEM = 32 * 2**20  # of 64 MiB or more, on every TPU
SCALARS = 2**16  # bounds that are prefetched: 256 KiB


@dataclasses.dataclass(frozen=True)
class Kind:
    """How tokens or entries are cut.

    Attributes:
        near: whether they are exact tokens.
        tile: rows in a tile.
        fetch: tiles in a block.
        blocks: most blocks that a tile of queries visits.
        queries: most tiles of queries that visit a tile.
    """

    near: bool
    tile: int
    fetch: int
    blocks: int
    queries: int


class Rows(NamedTuple):
    """Exact tokens or entries.

    Attributes:
        pair: keys and values, or one array that is both.
        ends: end and document of each row by tile, in lanes.
        seen: whether a tile of queries may see a tile of rows.
    """

    pair: tuple[Float[Array, "B K X H"], ...]
    ends: Int[Array, "B C 8 L"]
    seen: Bool[Array, "B Q C"]


class Ask(NamedTuple):
    """What queries read, see `Reads`; whole tiles."""

    position: Int[Array, "B Q"]
    since: Int[Array, "B Q"]
    segment: Int[Array, "B Q"]


def _dot(x: Array, y: Array, of_x: int, of_y: int) -> Array:
    """Product in float32 that sums over one axis of each."""
    return jax.lax.dot_general(
        x,
        y,
        (((of_x,), (of_y,)), ((), ())),
        precision="highest" if y.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )


def _scores(keys: Array, query: Array, ends: Array, ask: Array, near: bool) -> Array:
    """Scores [X, lanes] of a tile of rows, -inf where a query does not read.

    Args:
        keys: [X, H].
        query: [lanes, H].
        ends: [8, X], end and document.
        ask: [3, lanes], position, since and document.
        near: whether the rows are exact tokens.
    """
    columns = ends.T
    end, document = columns[:, 0:1], columns[:, 1:2]
    mask = (end <= ask[0:1]) & (document == ask[2:3])
    if near:
        mask &= end >= ask[1:2]
    return jnp.where(mask, _dot(keys, query, 1, 1) * query.shape[1] ** -0.5, -jnp.inf)


def _lanes(ref) -> Array:
    """Heads and queries of a block side by side, [lanes, H]."""
    x = ref[0]
    return x.reshape(-1, x.shape[-1])


def _for_each_tile(bounds, kinds: tuple[Kind, ...], rows, body: Callable) -> None:
    """Calls body(keys, values, ends, near) for the visible tiles of the blocks at hand."""
    at, step = _row(bounds[0]), pl.program_id(3)
    skipped = 0
    for kind, (pair, ends), first, stop in zip(kinds, rows, bounds[::2], bounds[1::2], strict=True):
        start = (first[at] // kind.fetch + step - skipped) * kind.fetch
        low, high = jnp.maximum(first[at], start), jnp.minimum(stop[at], start + kind.fetch)

        def tile(j: Array, none: None, kind=kind, pair=pair, ends=ends, start=start) -> None:
            j = j - start
            here = pl.ds(pl.multiple_of(j * kind.tile, kind.tile), kind.tile)
            body(pair[0][0, 0, here, :], pair[-1][0, 0, here, :], ends[0, j], kind.near)

        # Before the first block of a kind and after the last one the range is empty.
        jax.lax.fori_loop(low, high, tile, None)
        skipped += kind.blocks


def _row(bound) -> Array:
    """Where the bounds of this step's tile are."""
    batches = bound.shape[0] // pl.num_programs(2)
    return jax.lax.rem(pl.program_id(0), batches) * pl.num_programs(2) + pl.program_id(2)


def _forward_kernel(*refs, kinds: tuple[Kind, ...], has_sink: bool) -> None:
    bounds, refs = refs[: 2 * len(kinds)], refs[2 * len(kinds) :]
    ask, sink, query, *rows, out, lse, top, total, mixed = refs

    @pl.when(pl.program_id(3) == 0)
    def _():  # the sink is the first to enter the running softmax, and gives nothing
        top[...] = sink[0]
        total[...] = jnp.full_like(total, float(has_sink))
        mixed[...] = jnp.zeros_like(mixed)

    def tile(keys, values, ends, near):
        scores = _scores(keys, _lanes(query), ends, ask[0, 0], near)
        new = jnp.maximum(top[...], jnp.max(scores, axis=0, keepdims=True))
        weights, scale = jnp.exp(scores - new), jnp.exp(top[...] - new)
        top[...] = new
        total[...] = total[...] * scale + jnp.sum(weights, axis=0, keepdims=True)
        mixed[...] = mixed[...] * scale + _dot(values, weights.astype(values.dtype), 0, 0)

    _for_each_tile(bounds, kinds, rows, tile)

    @pl.when(pl.program_id(3) == pl.num_programs(3) - 1)
    def _():
        norm = jnp.where(total[...] > 0, total[...], 1)
        out[0] = (mixed[...] / norm).T.astype(out.dtype).reshape(out.shape[1:])
        lse[0, 0, 0] = top[...] + jnp.log(norm)


def _by_score(keys, values, ends, ask, query, ct, lse, lost, near) -> tuple[Array, Array]:
    """Weights [X, lanes], and the gradient of what they are the softmax of, by product."""
    weights = jnp.exp(_scores(keys, query, ends, ask, near) - lse)
    pulled = _dot(values, ct, 1, 1)
    return weights, weights * (pulled - lost) * query.shape[1] ** -0.5


def _query_kernel(*refs, kinds: tuple[Kind, ...]) -> None:
    bounds, refs = refs[: 2 * len(kinds)], refs[2 * len(kinds) :]
    ask, lse, lost, query, ct, *rows, d_query, total = refs

    @pl.when(pl.program_id(3) == 0)
    def _():
        total[...] = jnp.zeros_like(total)

    def tile(keys, values, ends, near):
        _, d_score = _by_score(
            keys,
            values,
            ends,
            ask[0, 0],
            _lanes(query),
            _lanes(ct),
            lse[0, 0, 0],
            lost[0, 0, 0],
            near,
        )
        total[...] += _dot(keys, d_score.astype(keys.dtype), 0, 0)

    _for_each_tile(bounds, kinds, rows, tile)

    @pl.when(pl.program_id(3) == pl.num_programs(3) - 1)
    def _():
        d_query[0] = total[...].T.astype(d_query.dtype).reshape(d_query.shape[1:])


def _row_kernel(first, stop, ask, lse, lost, query, ct, rows, grads, totals, *, near: bool) -> None:
    pair, ends = rows
    head, step = pl.program_id(3), pl.program_id(4)

    @pl.when((head == 0) & (step == 0))
    def _():
        for total in totals:
            total[...] = jnp.zeros_like(total)

    at = _row(first)

    @pl.when(first[at] + step < stop[at])
    def _():
        queries, upstream = _lanes(query), _lanes(ct)
        weights, d_score = _by_score(
            pair[0][0, 0],
            pair[-1][0, 0],
            ends[0, 0],
            ask[0, 0],
            queries,
            upstream,
            lse[0, 0, 0],
            lost[0, 0, 0],
            near,
        )
        totals[0][...] += _dot(d_score.astype(queries.dtype), queries, 1, 0)
        totals[-1][...] += _dot(weights.astype(upstream.dtype), upstream, 1, 0)

    @pl.when((head == pl.num_programs(3) - 1) & (step == pl.num_programs(4) - 1))
    def _():
        for grad, total in zip(grads, totals, strict=True):
            grad[0, 0] = total[...].astype(grad.dtype)


def _tile(x: Int[Array, "B X"], length: int) -> Int[Array, "B C L"]:
    return x.reshape(x.shape[0], -1, length)


def _seen(ask: Ask, end: Array, document: Array, near: bool, query: int, tile: int) -> Array:
    """Whether a tile of queries may see a tile of rows, from the extremes of both."""
    active, real = ask.position >= 0, end < NEVER

    def most(x: Array, where: Array, length: int) -> Array:
        return _tile(jnp.where(where, x, -1), length).max(-1)

    def least(x: Array, where: Array, length: int) -> Array:
        return _tile(jnp.where(where, x, NEVER), length).min(-1)

    def by_query(reduce: Callable, x: Array) -> Array:
        return reduce(x, active, query)[:, :, None]

    def by_row(reduce: Callable, x: Array) -> Array:
        return reduce(x, real, tile)[:, None, :]

    seen = by_row(least, end) <= by_query(most, ask.position)
    seen &= by_row(least, document) <= by_query(most, ask.segment)
    seen &= by_row(most, document) >= by_query(least, ask.segment)
    if near:
        seen &= by_row(most, end) >= by_query(least, ask.since)
    return seen


def _bounds(seen: Bool[Array, "B Q C"]) -> tuple[Int[Array, "X"], Int[Array, "X"]]:
    """First tile that each tile of queries sees, and one past the last, of all rows in a row."""
    count = jnp.arange(seen.shape[2], dtype=jnp.int32)
    stop = jnp.max(jnp.where(seen, count + 1, 0), axis=2)
    first = jnp.min(jnp.where(seen, count, stop[..., None]), axis=2)
    return first.reshape(-1), stop.reshape(-1)


def _most_visits(span: int, of: int, to: int, of_count: int, to_count: int, back: bool) -> int:
    """Most tiles of `to` rows that a tile of `of` rows meets, which lie `span` apart at most.

    They lie before it where `back`, and after it otherwise.
    """
    low = np.arange(of_count) * of
    high = low + of + (-1 if back else span - 2)
    low = np.maximum(low - (span - 1 if back else 0), 0)
    last = to_count - 1
    return int((np.minimum(high // to, last) - np.minimum(low // to, last)).max()) + 1


def _cut(pair: Pair, end: Array, document: Array, ask: Ask, span, blocks, *, near: bool):
    """The kind of some rows and its operands; `pair` as `api.compressed_attention` gets it."""
    length = blocks.token if near else blocks.entry
    count = -(-pair[0].shape[1] // length)
    queries = ask.position.shape[1] // blocks.query
    known = near and span is not None
    fetch = 1 if known else min(blocks.fetch, count)
    pair = tuple(jnp.swapaxes(tiles.padded(x, length * fetch), 1, 2) for x in pair)
    end, document = tiles.padded(end, length * fetch, NEVER), tiles.padded(document, length * fetch)
    count = pair[0].shape[2] // length
    both = jnp.stack([_tile(end, length), _tile(document, length)], axis=2)
    ends = jnp.pad(both, ((0, 0), (0, 0), (0, 6), (0, 0)))  # what fills the sublanes
    kind = Kind(near, length, fetch, count // fetch, queries)
    if known:
        kind = dataclasses.replace(
            kind,
            blocks=_most_visits(span, blocks.query, length, queries, count, True),
            queries=_most_visits(span, length, blocks.query, count, queries, False),
        )
    return kind, Rows(pair, ends, _seen(ask, end, document, near, blocks.query, length))


def _plan(near: Pair, entry: Pair, reads: Reads, span, blocks: TpuBlocks):
    """What is asked, and the kinds of rows that are read with their operands."""
    batch = max(x.shape[0] for x in reads)
    position, since, segment, token_segment, end, entry_segment = (
        jnp.broadcast_to(x, (batch, x.shape[1])) for x in reads
    )
    padded = functools.partial(tiles.padded, block=blocks.query)
    ask = Ask(padded(position, fill=-1), padded(since), padded(segment))
    tokens = near[0].shape[1]
    token = jnp.broadcast_to(jnp.arange(tokens, dtype=jnp.int32), (batch, tokens))
    found = [_cut(near, token, token_segment, ask, span, blocks, near=True)]
    if entry[0].shape[1]:
        found.append(_cut(entry, end, entry_segment, ask, span, blocks, near=False))
    kinds, rows = zip(*found, strict=True)
    return ask, kinds, rows


def _ask_by_tile(ask: Ask, blocks: TpuBlocks) -> Int[Array, "B C 3 L"]:
    """What the lanes of a tile read."""
    by_tile = jnp.stack([_tile(x, blocks.query) for x in ask], axis=2)
    return jnp.tile(by_tile, (1, 1, 1, blocks.heads))


def _by_head(x: Float[Array, "B Q N H"], blocks: TpuBlocks) -> Float[Array, "B N Q2 H"]:
    return jnp.swapaxes(tiles.padded(x, blocks.query), 1, 2)


def _from_head(x: Float[Array, "B N Q2 H"], queries: int) -> Float[Array, "B Q N H"]:
    return jnp.swapaxes(x, 1, 2)[:, :queries]


def _to_lanes(x: Float[Array, "B Q N"], blocks: TpuBlocks) -> Float[Array, "B T C 1 L"]:
    """One number a head and query, by tile."""
    x = tiles.padded(x, blocks.query)
    batch, queries, heads = x.shape
    x = x.reshape(batch, -1, blocks.query, heads // blocks.heads, blocks.heads)
    return x.transpose(0, 3, 1, 4, 2).reshape(batch, x.shape[3], x.shape[1], 1, -1)


def _from_lanes(x: Float[Array, "B T C 1 L"], queries: int, blocks: TpuBlocks) -> Array:
    """Undoes `_to_lanes`."""
    batch, parts, count = x.shape[:3]
    x = x.reshape(batch, parts, count, blocks.heads, blocks.query).transpose(0, 2, 4, 1, 3)
    return x.reshape(batch, count * blocks.query, -1)[:, :queries]


def _cost(query: Array, rows, kinds, span, products: int, blocks: TpuBlocks) -> pl.CostEstimate:
    """`products` of 2 H operations a pair; half of what is not near is visible in causal order."""
    batch, heads, queries, head_dim = query.shape
    pairs = 0
    for kind, (pair, *_) in zip(kinds, rows, strict=True):
        count = pair[0].shape[2]
        read = min(span, count) if kind.near and span is not None else count // 2
        pairs += batch * heads * queries * read
    fetched = len(rows[0].pair) * head_dim * pairs // (blocks.heads * blocks.query)
    return pl.CostEstimate(
        flops=2 * head_dim * products * pairs,
        transcendentals=pairs,
        bytes_accessed=(2 * query.size + fetched) * query.dtype.itemsize,
    )


def _by_query_call(
    kernel, arrays, query, ask, rows, kinds, outputs, scratch, products, span, blocks, interpret
):
    """The grid of the passes that walk through rows for each tile of queries.

    Args:
        kernel: called with references to the bounds of each kind, what is asked, `arrays`, rows,
            outputs and scratch.
        arrays: by name of their kind, "head", "lane" or "query", see `specs`.
        query: queries by head.
        ask: what they read.
        rows: operands of each kind of rows.
        kinds: these kinds.
        outputs: as `arrays`.
        scratch: shapes of scratch, float32.
        products: matrix products with a tile of rows.
        span: most exact tokens that a query reads, or None.
        blocks: block sizes.
        interpret: see `pl.pallas_call`.
    """
    batch, heads, queries, head_dim = query.shape
    groups = heads // rows[0].pair[0].shape[1]
    bounds = [x for r in rows for x in _bounds(r.seen)]
    asked = _ask_by_tile(ask, blocks)
    row_batches, count = asked.shape[:2]
    lanes = blocks.heads * blocks.query
    specs = {
        "query": pl.BlockSpec(
            (1, blocks.heads, blocks.query, head_dim), lambda b, h, i, j, *s: (b, h, i, 0)
        ),
        "lane": pl.BlockSpec((1, 1, 1, 1, lanes), lambda b, h, i, j, *s: (b, h, i, 0, 0)),
        "head": pl.BlockSpec((1, 1, lanes), lambda b, h, i, j, *s: (h, 0, 0)),
    }
    row_specs, skipped = [], 0
    for n, (kind, (pair, ends, _)) in enumerate(zip(kinds, rows, strict=True)):

        def block(b, i, j, s, n=n, kind=kind, skipped=skipped):
            """Skipped steps stay at a block that is needed, and copy nothing."""
            at = b % row_batches * count + i
            first, last = s[2 * n][at], jnp.maximum(s[2 * n + 1][at] - 1, s[2 * n][at])
            first, last = first // kind.fetch, last // kind.fetch
            return jnp.clip(first + j - skipped, first, last)

        def of_pair(b, h, i, j, *s, block=block):
            return b, h * blocks.heads // groups, block(b, i, j, s), 0

        def of_ends(b, h, i, j, *s, block=block):
            return b % row_batches, block(b, i, j, s), 0, 0

        by_row = pl.BlockSpec((1, 1, kind.fetch * kind.tile, head_dim), of_pair)
        ends_spec = pl.BlockSpec((1, kind.fetch, 8, kind.tile), of_ends)
        row_specs.append((tuple(by_row for _ in pair), ends_spec))
        skipped += kind.blocks
    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(bounds),
            grid=(batch, heads // blocks.heads, count, skipped),
            in_specs=[
                pl.BlockSpec((1, 1, 3, lanes), lambda b, h, i, j, *s: (b % row_batches, i, 0, 0)),
                *(specs[name] for name, _ in arrays),
                *row_specs,
            ],
            out_specs=[specs[name] for name, _ in outputs],
            scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
        ),
        out_shape=[x for _, x in outputs],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=VMEM,
        ),
        cost_estimate=_cost(query, rows, kinds, span, products, blocks),
        interpret=interpret,
    )(*bounds, asked, *(x for _, x in arrays), *((pair, ends) for pair, ends, _ in rows))


def _rows_call(query, ct, ask, lse, lost, rows, kind, span, blocks, interpret):
    """Gradients of one kind of rows, as `rows.pair`."""
    batch, heads, _, head_dim = query.shape
    kv_heads = rows.pair[0].shape[1]
    parts = heads // kv_heads // blocks.heads
    first, stop = _bounds(jnp.swapaxes(rows.seen, 1, 2))
    row_batches, _, count = rows.seen.shape
    lanes = blocks.heads * blocks.query

    def tile(b, r, s, first, stop):
        """Skipped steps stay at a tile that is needed, and copy nothing."""
        at = b % row_batches * count + r
        return jnp.minimum(first[at] + s, jnp.maximum(stop[at] - 1, first[at]))

    def of_ask(b, k, r, h, s, *bounds):
        return b % row_batches, tile(b, r, s, *bounds), 0, 0

    def of_query(b, k, r, h, s, *bounds):
        return b, k * parts + h, tile(b, r, s, *bounds), 0

    by_query = pl.BlockSpec((1, blocks.heads, blocks.query, head_dim), of_query)
    by_lane = pl.BlockSpec((1, 1, 1, 1, lanes), lambda *at: (*of_query(*at), 0))
    by_row = pl.BlockSpec((1, 1, kind.tile, head_dim), lambda b, k, r, h, s, *_: (b, k, r, 0))
    pair = tuple(by_row for _ in rows.pair)
    return pl.pallas_call(
        functools.partial(_row_kernel, near=kind.near),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(batch, kv_heads, count, parts, kind.queries),
            in_specs=[
                pl.BlockSpec((1, 1, 3, lanes), of_ask),
                by_lane,
                by_lane,
                by_query,
                by_query,
                (
                    pair,
                    pl.BlockSpec(
                        (1, 1, 8, kind.tile), lambda b, k, r, h, s, *_: (b % row_batches, r, 0, 0)
                    ),
                ),
            ],
            out_specs=[pair],
            scratch_shapes=[
                tuple(pltpu.VMEM((kind.tile, head_dim), jnp.float32) for _ in rows.pair)
            ],
        ),
        out_shape=[tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in rows.pair)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary", "arbitrary"),
            vmem_limit_bytes=VMEM,
        ),
        cost_estimate=_cost(query, (rows,), (kind,), span, 4, blocks),
        interpret=interpret,
    )(first, stop, _ask_by_tile(ask, blocks), lse, lost, query, ct, (rows.pair, rows.ends))[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6, 7))
def _attend(query, near, entry, reads, sink, span, blocks, interpret):
    return _forward(query, near, entry, reads, sink, span, blocks, interpret)[0]


def _forward(query, near, entry, reads, sink, span, blocks, interpret):
    ask, kinds, rows = _plan(near, entry, reads, span, blocks)
    by_head = _by_head(query, blocks)
    batch, heads, padded, head_dim = by_head.shape
    lanes, parts = blocks.heads * blocks.query, heads // blocks.heads
    logit = jnp.full(heads, jnp.finfo(jnp.float32).min) if sink is None else sink
    logit = jnp.repeat(logit.astype(jnp.float32), blocks.query).reshape(parts, 1, lanes)
    statistics = jax.ShapeDtypeStruct((batch, parts, padded // blocks.query, 1, lanes), jnp.float32)
    mixed, lse = _by_query_call(
        functools.partial(_forward_kernel, kinds=kinds, has_sink=sink is not None),
        [("head", logit), ("query", by_head)],
        by_head,
        ask,
        rows,
        kinds,
        [("query", jax.ShapeDtypeStruct(by_head.shape, near[-1].dtype)), ("lane", statistics)],
        [(1, lanes), (1, lanes), (head_dim, lanes)],
        2,
        span,
        blocks,
        interpret,
    )
    mixed = _from_head(mixed, query.shape[1])
    return mixed, (query, near, entry, reads, sink, mixed, lse)


def _backward(span, blocks, interpret, kept, cotangent):
    query, near, entry, reads, sink, mixed, lse = kept
    queries = query.shape[1]
    ask, kinds, rows = _plan(near, entry, reads, span, blocks)
    by_head, ct = _by_head(query, blocks), _by_head(cotangent, blocks)
    lost = jnp.einsum("bqnh,bqnh->bqn", mixed, cotangent, preferred_element_type=jnp.float32)
    lost_lanes = _to_lanes(lost, blocks)
    (d_query,) = _by_query_call(
        functools.partial(_query_kernel, kinds=kinds),
        [("lane", lse), ("lane", lost_lanes), ("query", by_head), ("query", ct)],
        by_head,
        ask,
        rows,
        kinds,
        [("query", jax.ShapeDtypeStruct(by_head.shape, query.dtype))],
        [(query.shape[3], blocks.heads * blocks.query)],
        3,
        span,
        blocks,
        interpret,
    )
    grads = [
        tuple(
            jnp.swapaxes(g, 1, 2)[:, : x.shape[1]]
            for g, x in zip(
                _rows_call(by_head, ct, ask, lse, lost_lanes, r, kind, span, blocks, interpret),
                pair,
                strict=True,
            )
        )
        for r, kind, pair in zip(rows, kinds, (near, entry), strict=False)
    ]
    d_near, d_entry = (*grads, entry)[:2]  # without entries there is nothing to be zero
    d_sink = None
    if sink is not None:
        taken = jnp.exp(sink.astype(jnp.float32) - _from_lanes(lse, queries, blocks))
        d_sink = -jnp.sum(taken * lost, axis=(0, 1)).astype(sink.dtype)
    return _from_head(d_query, queries), d_near, d_entry, None, d_sink


_attend.defvjp(_forward, _backward)


def compressed_attention(
    query: Float[Array, "B Q N H"],
    near: Pair,
    entry: Pair,
    reads: Reads,
    sink: Float[Array, "N"] | None,
    *,
    span: int | None,
    blocks: TpuBlocks | None = None,
    interpret: Any = False,
) -> Float[Array, "B Q N H"]:
    """See `api.compressed_attention`; `blocks` comes from the shapes unless given.

    Raises:
        NotImplementedError: unless operands are float32 or bfloat16, there are queries and tokens,
            and the bounds of all tiles fit in scalar memory.
    """
    if query.dtype not in (jnp.float32, jnp.bfloat16):
        raise NotImplementedError(f"query.dtype={query.dtype} is neither float32 nor bfloat16.")
    tokens, kv_heads = near[0].shape[1:3]
    if not query.size * tokens:
        raise NotImplementedError(f"query.shape={query.shape} and {tokens} tokens: nothing to do.")
    blocks = blocks or tpu_heuristic(query.shape, kv_heads, tokens, entry[0].shape[1], span)
    rows = max(x.shape[0] for x in reads)
    bounds = (
        rows
        * 4
        * max(
            -(-query.shape[1] // blocks.query),
            -(-tokens // blocks.token),
            -(-entry[0].shape[1] // blocks.entry),
        )
    )
    if bounds > SCALARS:
        raise NotImplementedError(f"{bounds} bounds of tiles overflow scalar memory.")
    return _attend(query, near, entry, reads, sink, span, blocks, interpret)
