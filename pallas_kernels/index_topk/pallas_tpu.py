# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The lightning indexer on TPU: scores of a tile of entries, merged into a running top-k.

Queries lie in lanes and entries in sublanes. A tile holds as many entries as the list it is merged
into, L = P rounded up to a power of two. It is sorted worst first by a bitonic network, whose
exchanges are rotations of sublanes; the better of each pair of tile and list is then the new list,
and half a network sorts it. The order, by score and then by index, is total, so the network is as
stable as a stable sort. Tiles that no query of the tile may see cost a grid step and nothing else.

Floor for each pair of a query and a visible entry: 2 N H operations in the matrix unit, and in the
vector unit 3 N for the heads and about 9 for each of the m (m + 3) / 2 + 1 stages, m = log2 L.
DeepSeek-V4-Flash (N = 64, H = 128, P = 512: 16384 and 690) at T = 131072 has 2.1 G pairs: 0.18 s at
197 TFLOP/s (v5e), and 0.39 s at 3.8 T vector operations a second, which therefore bind. Bytes are
few: 2 H a visible entry for each 128 queries, 4.3 GB, 5 ms.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from pallas_kernels import tiles
from pallas_kernels.block_sizes import block_sizes
from pallas_kernels.index_topk.config import TPU_LANES, Blocks, blocked_heuristic, tpu_sorted
from pallas_kernels.index_topk.gradient import with_gradient
from pallas_kernels.index_topk.reference import Picks
from pallas_kernels.index_topk.xla_blocked import tile_bounds
from pallas_kernels.masks import NEVER


def _better(score: Array, index: Array, than_score: Array, than_index: Array) -> Array:
    """A total order: higher scores, then lower indices."""
    return (score > than_score) | ((score == than_score) & (index < than_index))


def _order_pairs(score_ref, index_ref, distance: Array, direction: Array) -> None:
    """Orders every pair of rows that lie `distance` apart, a power of two.

    Args:
        score_ref: scores [L, 128].
        index_ref: their indices.
        distance: distance of the two rows of a pair.
        direction: [L, 128], 0 where the pair is put best first, otherwise worst first.
    """
    score, index = score_ref[...], index_ref[...]
    length = score.shape[0]
    row = jax.lax.broadcasted_iota(jnp.int32, score.shape, 0)
    is_second = (row & distance) != 0

    def other(x: Array) -> Array:
        return jnp.where(is_second, pltpu.roll(x, distance, 0), pltpu.roll(x, length - distance, 0))

    partner_score, partner_index = other(score), other(index)
    better = _better(partner_score, partner_index, score, index)
    swap = better ^ is_second ^ (direction != 0)
    score_ref[...] = jnp.where(swap, partner_score, score)
    index_ref[...] = jnp.where(swap, partner_index, index)


def _sort_bitonic(score_ref, index_ref, level: Array, row: Array) -> None:
    """Sorts each bitonic run of 2^level rows, best first where bit `level` of `row` is 0."""
    direction = row & jax.lax.shift_left(1, level)

    def stage(i: Array, none: None) -> None:
        _order_pairs(score_ref, index_ref, jax.lax.shift_left(1, level - 1 - i), direction)

    jax.lax.fori_loop(0, level, stage, None)


def _merge(tile_score, tile_index, best_score, best_index) -> None:
    """Replaces a list sorted best first by the best of it and an unsorted tile as long."""
    length = tile_score.shape[0]
    levels = length.bit_length() - 1
    row = jax.lax.broadcasted_iota(jnp.int32, tile_score.shape, 0)

    # Runs of 2, 4, ... rows in alternating directions; the last one is worst first.
    def level(i: Array, none: None) -> None:
        _sort_bitonic(tile_score, tile_index, i, row + length)

    jax.lax.fori_loop(1, levels + 1, level, None)
    score, index = tile_score[...], tile_index[...]
    keep = _better(best_score[...], best_index[...], score, index)
    best_score[...] = jnp.where(keep, best_score[...], score)
    best_index[...] = jnp.where(keep, best_index[...], index)
    _sort_bitonic(best_score, best_index, levels, row)


def _kernel(
    first,
    stop,
    query,
    weight,
    position,
    segment,
    key,
    end,
    entry_segment,
    best_index,
    best_score,
    tile_index,
    tile_score,
) -> None:
    b, i, j = (pl.program_id(axis) for axis in range(3))

    # An entry that is not seen ties with these and is put after them, so that no list takes it.
    @pl.when(j == 0)
    def _():
        best_score[0] = jnp.full(best_score.shape[1:], -jnp.inf, jnp.float32)
        best_index[0] = jnp.full(best_index.shape[1:], -1, jnp.int32)

    @pl.when((j >= first[b, i]) & (j < stop[b, i]))
    def _():
        length, lanes = tile_score.shape
        keys = key[0]
        precision = "highest" if keys.dtype == jnp.float32 else None

        def head(n: Array, total: Array) -> Array:
            dots = jax.lax.dot_general(
                keys,
                query[0, n],
                (((1,), (1,)), ((), ())),
                precision=precision,
                preferred_element_type=jnp.float32,
            )
            return total + weight[0, pl.ds(n, 1), :] * jnp.maximum(dots, 0)

        heads = query.shape[1]
        score = jax.lax.fori_loop(0, heads, head, jnp.zeros((length, lanes), jnp.float32))
        seen = (end[0] <= position[0]) & (entry_segment[0] == segment[0])
        tile_score[...] = jnp.where(seen, score, -jnp.inf)
        row = jax.lax.broadcasted_iota(jnp.int32, (length, lanes), 0)
        tile_index[...] = j * length + row
        _merge(tile_score, tile_index, best_score.at[0], best_index.at[0])


def _select(query, weight, key, position, end, segment, entry_segment, picks, interpret) -> Picks:
    batch, queries, heads, head_dim = query.shape
    length, lanes = tpu_sorted(picks), TPU_LANES
    query, weight = tiles.padded(query, lanes), tiles.padded(weight, lanes)
    position, segment = tiles.padded(position, lanes, -1), tiles.padded(segment, lanes)
    key, end = tiles.padded(key, length), tiles.padded(end, length, NEVER)
    entry_segment = tiles.padded(entry_segment, length)
    # Every axis is whole tiles now; a tile of the gradient is no concern of the bounds.
    bounds = tile_bounds(position, end, segment, entry_segment, Blocks(lanes, length, lanes))
    padded, entries = query.shape[1], key.shape[1]

    def visit(b, i, j, first, stop):
        """Skipped steps stay at a tile that is needed, and copy nothing."""
        return jnp.clip(j, first[b, i], jnp.maximum(stop[b, i] - 1, first[b, i]))

    by_query = pl.BlockSpec((1, 1, lanes), lambda b, i, j, f, s: (b, 0, i))
    by_entry = pl.BlockSpec((1, length, 1), lambda b, i, j, f, s: (b, visit(b, i, j, f, s), 0))
    out = pl.BlockSpec((1, length, lanes), lambda b, i, j, f, s: (b, 0, i))
    pairs = batch * padded * entries // 2
    index, score = pl.pallas_call(
        _kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(batch, padded // lanes, entries // length),
            in_specs=[
                pl.BlockSpec((1, heads, lanes, head_dim), lambda b, i, j, f, s: (b, 0, i, 0)),
                pl.BlockSpec((1, heads, lanes), lambda b, i, j, f, s: (b, 0, i)),
                by_query,
                by_query,
                pl.BlockSpec(
                    (1, length, head_dim), lambda b, i, j, f, s: (b, visit(b, i, j, f, s), 0)
                ),
                by_entry,
                by_entry,
            ],
            out_specs=[out, out],
            scratch_shapes=[
                pltpu.VMEM((length, lanes), jnp.int32),
                pltpu.VMEM((length, lanes), jnp.float32),
            ],
        ),
        out_shape=[
            jax.ShapeDtypeStruct((batch, length, padded), jnp.int32),
            jax.ShapeDtypeStruct((batch, length, padded), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            # Queries of 64 heads in float32 take 8 MiB, twice while the next ones arrive.
            vmem_limit_bytes=block_sizes("index_topk", "tpu")["vmem_bytes"],
        ),
        # Half of all pairs are visible in causal order.
        cost_estimate=pl.CostEstimate(
            flops=2 * heads * head_dim * pairs,
            transcendentals=0,
            bytes_accessed=query.size * query.dtype.itemsize
            + pairs // lanes * head_dim * key.dtype.itemsize
            + 8 * batch * length * padded,
        ),
        interpret=interpret,
    )(
        *bounds,
        jnp.swapaxes(query, 1, 2),
        jnp.swapaxes(weight.astype(jnp.float32), 1, 2),
        position[:, None],
        segment[:, None],
        key,
        end[..., None],
        entry_segment[..., None],
    )
    return Picks(*(jnp.swapaxes(x, 1, 2)[:, :queries, :picks] for x in (index, score)))


_index_topk = with_gradient(_select)


def index_topk(
    query: Float[Array, "B Q N H"],
    weight: Float[Array, "B Q N"],
    key: Float[Array, "B E H"],
    position: Int[Array, "B Q"],
    end: Int[Array, "B E"],
    segment: Int[Array, "B Q"],
    entry_segment: Int[Array, "B E"],
    *,
    picks: int,
    interpret: Any = False,
) -> Picks:
    """See `api.index_topk`. The gradient is that of plain JAX.

    Raises:
        NotImplementedError: unless queries are float32 or bfloat16, there are some, and lists of
            their picks fit in VMEM.
    """
    if query.dtype not in (jnp.float32, jnp.bfloat16):
        raise NotImplementedError(f"query.dtype={query.dtype} is neither float32 nor bfloat16.")
    if not query.size:
        raise NotImplementedError(f"query.shape={query.shape}: there is nothing to do.")
    # Queries, twice, and scores and indices: results twice, a tile, and what the network makes.
    need = 2 * TPU_LANES * query.shape[2] * query.shape[3] * query.dtype.itemsize
    need += 19 * 4 * tpu_sorted(picks) * TPU_LANES
    if need > block_sizes("index_topk", "tpu")["vmem_bytes"]:
        raise NotImplementedError(f"picks={picks}: lists of {tpu_sorted(picks)} overflow VMEM.")
    block = blocked_heuristic(query.shape, key.shape[1], picks).gradient
    operands = query, weight, key, position, end, segment, entry_segment
    return _index_topk(*operands, picks, block, interpret)
