# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Compressed attention on TPU, forward and backward: one softmax over tiles of tokens and entries.

Scores are transposed: rows that are read lie in sublanes, and lanes are the queries of a tile times
some heads that share keys. So what the running softmax keeps is one number a lane, and maxima and
sums run down the sublanes. Exact tokens and entries go through the same steps: a token is an entry
that ends with itself, and too old for queries that read since later.

Which tiles some query of a tile may see is found beforehand, and the first and last of them are
prefetched as scalars. Blocks of several tiles are fetched; inside of one, a loop runs over the
tiles between these bounds alone. Blocks outside of them are neither fetched nor computed.

Floor: 4 H operations forward for each pair of a head's query and a row that it reads, and 14 H
backward, since both of its passes make the scores again. Qwen3-0.6B (N = 16, H = 128, window 16,
W8/S8) at T = 131072 has 17.2 G pairs: 8.8 TFLOP, 45 ms at 197 TFLOP/s (v5e), and 45 ms for about 10
vector operations a pair at 3.8 T/s. Each tile of 512 lanes fetches its visible rows, 17.2 GB, 21 ms
at 819 GB/s. DeepSeek-V4-Flash (N = 64, H = 512, one array) reads window and HCA entries in 5.4 G
pairs, 11 TFLOP, 56 ms; with all CSA entries in 138 G pairs, 284 TFLOP, 1.4 s.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from pallas_kernels import tiles
from pallas_kernels.block_sizes import block_sizes
from pallas_kernels.compressed_attention.config import TpuBlocks, tpu_heuristic
from pallas_kernels.compressed_attention.masks import Reads
from pallas_kernels.compressed_attention.plan import Kind, Plan, Rows, bounds, plan
from pallas_kernels.compressed_attention.reference import Pair


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


def _to_rows(ref, head_dim: int) -> Array:
    """Queries of all heads of a block below each other, [lanes, H]; read as the lanes of scores."""
    x = ref[0, 0]
    heads = [x[:, at : at + head_dim] for at in range(0, x.shape[1], head_dim)]
    return jnp.concatenate(heads, axis=0)


def _store(ref, x: Float[Array, "H lanes"]) -> None:
    """Puts what was summed for each lane where `_to_rows` would find it."""
    queries, head_dim, x = ref.shape[2], x.shape[0], x.T.astype(ref.dtype)
    for g in range(ref.shape[3] // head_dim):
        own = x[g * queries : (g + 1) * queries]
        ref[0, 0, :, g * head_dim : (g + 1) * head_dim] = own


def _for_each_tile(limits, kinds: tuple[Kind, ...], rows, body: Callable) -> None:
    """Calls body(keys, values, ends, near) for the visible tiles of the blocks at hand."""
    at, step = _row(limits[0]), pl.program_id(3)
    skipped = 0
    for kind, (pair, ends), first, stop in zip(kinds, rows, limits[::2], limits[1::2], strict=True):
        start = (jax.lax.div(first[at], kind.fetch) + step - skipped) * kind.fetch
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
    tile, count = pl.program_id(2), pl.num_programs(2)
    return tile if bound.shape[0] == count else pl.program_id(0) * count + tile


def _forward_kernel(*refs, kinds: tuple[Kind, ...], has_sink: bool) -> None:
    limits, refs = refs[: 2 * len(kinds)], refs[2 * len(kinds) :]
    ask, sink, query, *rows, out, lse, top, total, mixed = refs

    @pl.when(pl.program_id(3) == 0)
    def _():  # the sink is the first to enter the running softmax, and gives nothing
        top[...] = sink[0]
        total[...] = jnp.full_like(total, float(has_sink))
        mixed[...] = jnp.zeros_like(mixed)

    def tile(keys, values, ends, near):
        scores = _scores(keys, _to_rows(query, keys.shape[1]), ends, ask[0, 0], near)
        new = jnp.maximum(top[...], jnp.max(scores, axis=0, keepdims=True))
        weights, scale = jnp.exp(scores - new), jnp.exp(top[...] - new)
        top[...] = new
        total[...] = total[...] * scale + jnp.sum(weights, axis=0, keepdims=True)
        mixed[...] = mixed[...] * scale + _dot(values, weights.astype(values.dtype), 0, 0)

    _for_each_tile(limits, kinds, rows, tile)

    @pl.when(pl.program_id(3) == pl.num_programs(3) - 1)
    def _():
        norm = jnp.where(total[...] > 0, total[...], 1)
        _store(out, mixed[...] / norm)
        lse[0, 0, 0] = top[...] + jnp.log(norm)


def _by_score(keys, values, ends, ask, query, ct, lse, lost, near) -> tuple[Array, Array]:
    """Weights [X, lanes], and the gradient of what they are the softmax of, by product."""
    weights = jnp.exp(_scores(keys, query, ends, ask, near) - lse)
    pulled = _dot(values, ct, 1, 1)
    return weights, weights * (pulled - lost) * query.shape[1] ** -0.5


def _query_kernel(*refs, kinds: tuple[Kind, ...]) -> None:
    limits, refs = refs[: 2 * len(kinds)], refs[2 * len(kinds) :]
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
            _to_rows(query, keys.shape[1]),
            _to_rows(ct, keys.shape[1]),
            lse[0, 0, 0],
            lost[0, 0, 0],
            near,
        )
        total[...] += _dot(keys, d_score.astype(keys.dtype), 0, 0)

    _for_each_tile(limits, kinds, rows, tile)

    @pl.when(pl.program_id(3) == pl.num_programs(3) - 1)
    def _():
        _store(d_query, total[...])


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
        queries, upstream = (_to_rows(x, pair[0].shape[3]) for x in (query, ct))
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


def _together(x: Float[Array, "B Q N H"], blocks: TpuBlocks) -> Float[Array, "B P Q2 C"]:
    """Heads side by side: all of them (P = 1), if blocks of some of them can be cut out."""
    x = tiles.padded(x, blocks.query)
    *rows, heads, head_dim = x.shape
    x = x.reshape(*rows, 1, heads * head_dim)
    if blocks.heads * head_dim % 128:
        x = x.reshape(*rows, heads // blocks.heads, blocks.heads * head_dim)
    return jnp.swapaxes(x, 1, 2)


def _apart(x: Float[Array, "B P Q2 C"], like: Float[Array, "B Q N H"]) -> Float[Array, "B Q N H"]:
    """Undoes `_together`."""
    return jnp.swapaxes(x, 1, 2)[:, : like.shape[1]].reshape(like.shape)


def _query_spec(blocks: TpuBlocks, head_dim: int, at: Callable) -> pl.BlockSpec:
    """The block of what `_together` gives, `at` the batch, tile of heads and tile of queries."""
    width = blocks.heads * head_dim

    def index(*step):
        b, h, i = at(*step)
        return (b, h, i, 0) if width % 128 else (b, 0, i, h)

    return pl.BlockSpec((1, 1, blocks.query, width), index)


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


def _cost(plan: Plan, near: tuple[bool, ...], products: int) -> pl.CostEstimate:
    """`products` of 2 H operations a score."""
    batch, queries, heads, head_dim = plan.shape
    pairs = sum(map(plan.pairs, near))
    rows = plan.rows[0].pair
    fetched = len(rows) * head_dim * pairs // plan.lanes
    return pl.CostEstimate(
        flops=2 * head_dim * products * pairs,
        transcendentals=pairs,
        bytes_accessed=(2 * batch * queries * heads * head_dim + fetched) * rows[0].dtype.itemsize,
    )


def _own_row(plan: Plan) -> Callable:
    """Where a row of the batch finds what all rows may share."""
    return lambda b: b if plan.asked.shape[0] > 1 else 0


def _by_query(kernel, plan: Plan, arrays, outputs, scratch, products: int, interpret: Any) -> list:
    """The grid of the passes that walk through rows for each tile of queries.

    Args:
        kernel: called with references to the bounds of each kind, what is asked, `arrays`, rows,
            outputs and scratch.
        plan: the tiles.
        arrays: what each is made for, "head", "lane" or "query", and the array, cut accordingly.
        outputs: the same of each result, with a shape and dtype for the array.
        scratch: shapes of scratch, float32.
        products: matrix products with a tile of rows.
        interpret: see `pl.pallas_call`.
    """
    batch, _, heads, head_dim = plan.shape
    blocks, lanes, count, own = plan.blocks, plan.lanes, plan.asked.shape[1], _own_row(plan)
    limits = [x for rows in plan.rows for x in bounds(rows.seen)]
    specs = {
        "query": _query_spec(blocks, head_dim, lambda b, h, i, j, *s: (b, h, i)),
        "lane": pl.BlockSpec((1, 1, 1, 1, lanes), lambda b, h, i, j, *s: (b, h, i, 0, 0)),
        "head": pl.BlockSpec((1, 1, lanes), lambda b, h, i, j, *s: (h, 0, 0)),
    }
    row_specs, skipped = [], 0
    for n, (kind, rows) in enumerate(zip(plan.kinds, plan.rows, strict=True)):

        def block(b, i, j, s, n=n, kind=kind, skipped=skipped):
            """Skipped steps stay at a block that is needed, and copy nothing."""
            at = own(b) * count + i
            first, last = s[2 * n][at], jnp.maximum(s[2 * n + 1][at] - 1, s[2 * n][at])
            first, last = jax.lax.div(first, kind.fetch), jax.lax.div(last, kind.fetch)
            return jnp.clip(first + j - skipped, first, last)

        def of_pair(b, h, i, j, *s, block=block):
            return b, jax.lax.div(h, plan.parts), block(b, i, j, s), 0

        def of_ends(b, h, i, j, *s, block=block):
            return own(b), block(b, i, j, s), 0, 0

        by_row = pl.BlockSpec((1, 1, kind.fetch * kind.tile, head_dim), of_pair)
        ends = pl.BlockSpec((1, kind.fetch, 8, kind.tile), of_ends)
        row_specs.append((tuple(by_row for _ in rows.pair), ends))
        skipped += kind.blocks
    return pl.pallas_call(
        functools.partial(kernel, kinds=plan.kinds),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(limits),
            grid=(batch, heads // blocks.heads, count, skipped),
            in_specs=[
                pl.BlockSpec((1, 1, 3, lanes), lambda b, h, i, j, *s: (own(b), i, 0, 0)),
                *(specs[name] for name, _ in arrays),
                *row_specs,
            ],
            out_specs=[specs[name] for name, _ in outputs],
            scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
        ),
        out_shape=[x for _, x in outputs],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=block_sizes("compressed_attention", "tpu")["vmem_bytes"],
        ),
        cost_estimate=_cost(plan, tuple(kind.near for kind in plan.kinds), products),
        interpret=interpret,
    )(*limits, plan.asked, *(x for _, x in arrays), *((x.pair, x.ends) for x in plan.rows))


def _by_rows(plan: Plan, kind: Kind, rows: Rows, arrays, interpret: Any) -> tuple[Array, ...]:
    """Gradients of one kind of rows; `arrays` are lse, lost, queries and cotangents."""
    batch, _, _, head_dim = plan.shape
    own, count = _own_row(plan), rows.seen.shape[2]

    def tile(b, r, s, first, stop):
        """Skipped steps stay at a tile that is needed, and copy nothing."""
        at = own(b) * count + r
        return jnp.minimum(first[at] + s, jnp.maximum(stop[at] - 1, first[at]))

    def of_query(b, k, r, h, s, *limits):
        return b, k * plan.parts + h, tile(b, r, s, *limits)

    by_query = _query_spec(plan.blocks, head_dim, of_query)
    by_lane = pl.BlockSpec((1, 1, 1, 1, plan.lanes), lambda *at: (*of_query(*at), 0, 0))
    asked = pl.BlockSpec(
        (1, 1, 3, plan.lanes), lambda b, k, r, h, s, *x: (own(b), tile(b, r, s, *x), 0, 0)
    )
    by_row = pl.BlockSpec((1, 1, kind.tile, head_dim), lambda b, k, r, h, s, *x: (b, k, r, 0))
    ends = pl.BlockSpec((1, 1, 8, kind.tile), lambda b, k, r, h, s, *x: (own(b), r, 0, 0))
    pair = tuple(by_row for _ in rows.pair)
    (grads,) = pl.pallas_call(
        functools.partial(_row_kernel, near=kind.near),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(batch, rows.pair[0].shape[1], count, plan.parts, kind.queries),
            in_specs=[asked, by_lane, by_lane, by_query, by_query, (pair, ends)],
            out_specs=[pair],
            scratch_shapes=[
                tuple(pltpu.VMEM((kind.tile, head_dim), jnp.float32) for _ in rows.pair)
            ],
        ),
        out_shape=[tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in rows.pair)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary", "arbitrary"),
            vmem_limit_bytes=block_sizes("compressed_attention", "tpu")["vmem_bytes"],
        ),
        cost_estimate=_cost(plan, (kind.near,), 4),
        interpret=interpret,
    )(*bounds(jnp.swapaxes(rows.seen, 1, 2)), plan.asked, *arrays, (rows.pair, rows.ends))
    return grads


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6, 7))
def _attend(query, near, entry, reads, sink, span, blocks, interpret):
    return _forward(query, near, entry, reads, sink, span, blocks, interpret)[0]


def _forward(query, near, entry, reads, sink, span, blocks, interpret):
    cut = plan(query, near, entry, reads, span, blocks)
    batch, _, heads, head_dim = query.shape
    parts, lanes = heads // blocks.heads, cut.lanes
    logit = jnp.full(heads, jnp.finfo(jnp.float32).min) if sink is None else sink
    logit = jnp.repeat(logit.astype(jnp.float32), blocks.query).reshape(parts, 1, lanes)
    queries = _together(query, blocks)
    mixed = jax.ShapeDtypeStruct(queries.shape, near[-1].dtype)
    lse = jax.ShapeDtypeStruct((batch, parts, cut.asked.shape[1], 1, lanes), jnp.float32)
    mixed, lse = _by_query(
        functools.partial(_forward_kernel, has_sink=sink is not None),
        cut,
        [("head", logit), ("query", queries)],
        [("query", mixed), ("lane", lse)],
        [(1, lanes), (1, lanes), (head_dim, lanes)],
        2,
        interpret,
    )
    mixed = _apart(mixed, query)
    return mixed, (query, near, entry, reads, sink, mixed, lse)


def _backward(span, blocks, interpret, kept, cotangent):
    query, near, entry, reads, sink, mixed, lse = kept
    cut = plan(query, near, entry, reads, span, blocks)
    lost = jnp.sum(mixed.astype(jnp.float32) * cotangent.astype(jnp.float32), axis=-1)
    queries = _together(query, blocks)
    arrays = lse, _to_lanes(lost, blocks), queries, _together(cotangent, blocks)
    (d_query,) = _by_query(
        _query_kernel,
        cut,
        list(zip(("lane", "lane", "query", "query"), arrays, strict=True)),
        [("query", jax.ShapeDtypeStruct(queries.shape, query.dtype))],
        [(query.shape[3], cut.lanes)],
        3,
        interpret,
    )
    grads = []
    for kind, rows, pair in zip(cut.kinds, cut.rows, (near, entry), strict=False):
        by_head = _by_rows(cut, kind, rows, arrays, interpret)
        grads.append(tuple(jnp.swapaxes(g, 1, 2)[:, : pair[0].shape[1]] for g in by_head))
    d_near, d_entry = (*grads, entry)[:2]  # no entries are their own gradient
    d_sink = None
    if sink is not None:
        taken = jnp.exp(sink.astype(jnp.float32) - _from_lanes(lse, query.shape[1], blocks))
        d_sink = -jnp.sum(taken * lost, axis=(0, 1)).astype(sink.dtype)
    return _apart(d_query, query), d_near, d_entry, None, d_sink


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
    counts = (
        -(-count // block)
        for count, block in (
            (query.shape[1], blocks.query),
            (tokens, blocks.token),
            (entry[0].shape[1], blocks.entry),
        )
    )
    scalars = 4 * max(counts) * max(x.shape[0] for x in reads)
    if scalars > block_sizes("compressed_attention", "tpu")["bounds"]:
        raise NotImplementedError(f"{scalars} bounds of tiles overflow scalar memory.")
    return _attend(query, near, entry, reads, sink, span, blocks, interpret)
