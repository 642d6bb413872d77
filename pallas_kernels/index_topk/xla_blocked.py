# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Running top-k over tiles of entries, in plain JAX: scores exist for one tile at a time.

Work is that of the visible tiles; memory is the operands, the picks and one tile of scores,
B x L x N x Le.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels import tiles
from pallas_kernels.index_topk.config import Blocks, blocked_heuristic
from pallas_kernels.index_topk.gradient import with_gradient
from pallas_kernels.index_topk.reference import Picks, index_scores
from pallas_kernels.masks import NEVER, entry_mask

Bounds = tuple[Int[Array, "B C"], Int[Array, "B C"]]


def tile_bounds(
    position: Int[Array, "B Q"],
    end: Int[Array, "B E"],
    segment: Int[Array, "B Q"],
    entry_segment: Int[Array, "B E"],
    blocks: Blocks,
) -> Bounds:
    """First tile of entries that some query of each tile of queries may see, and one past the last.

    Axes are padded already. Compares extremes of tiles, so entries may come in any order.
    """

    def tile(x: Int[Array, "B X"], block: int) -> Int[Array, "B C L"]:
        return x.reshape(x.shape[0], -1, block)

    position, segment = tile(position, blocks.query), tile(segment, blocks.query)
    end, entry_segment = tile(end, blocks.entry), tile(entry_segment, blocks.entry)
    past = end.min(-1)[:, None, :] <= position.max(-1)[:, :, None]
    low, high = entry_segment.min(-1)[:, None, :], entry_segment.max(-1)[:, None, :]
    seen = past & (low <= segment.max(-1)[:, :, None]) & (high >= segment.min(-1)[:, :, None])
    count = end.shape[1]
    first = jnp.min(jnp.where(seen, jnp.arange(count), count), axis=-1)
    stop = jnp.max(jnp.where(seen, jnp.arange(count) + 1, 0), axis=-1)
    return jnp.minimum(first, stop), stop


def _select(query, weight, key, position, end, segment, entry_segment, picks, blocks) -> Picks:
    entries = key.shape[1]
    blocks = dataclasses.replace(blocks, entry=min(blocks.entry, entries))
    # Keys are not padded: a token that is decoded would copy all of them.
    end = tiles.padded(end, blocks.entry, NEVER)
    entry_segment = tiles.padded(entry_segment, blocks.entry)
    split = functools.partial(tiles.split, block=blocks.query)
    queries = split(query), split(weight), split(position, fill=-1), split(segment)
    bounds = tile_bounds(
        tiles.padded(position, blocks.query, -1),
        end,
        tiles.padded(segment, blocks.query),
        entry_segment,
        blocks,
    )
    # One loop serves every row of the batch.
    first, stop = bounds[0].min(0), bounds[1].max(0)
    shape = (query.shape[0], blocks.query, picks)
    none = Picks(
        jnp.full(shape, -1, jnp.int32),
        jnp.full(shape, -jnp.inf, jnp.promote_types(query.dtype, jnp.float32)),
    )

    def pick(args: tuple[Array, ...]) -> Picks:
        q, w, at, seg, first, stop = args

        def step(j: Int[Array, ""], best: Picks) -> Picks:
            # The last tile ends with the entries: those of the tile before are masked.
            start = jnp.minimum(j * blocks.entry, entries - blocks.entry)
            at_entry = start + jnp.arange(blocks.entry, dtype=jnp.int32)
            k, e, s = (
                jax.lax.dynamic_slice_in_dim(x, start, blocks.entry, axis=1)
                for x in (key, end, entry_segment)
            )
            score = index_scores(q, w, k[:, None])
            score = jnp.where(score == 0, 0, score)  # top_k puts -0 below 0, which are a tie
            seen = entry_mask(at, seg, e, s) & (at_entry >= j * blocks.entry)
            score = jnp.where(seen, score, -jnp.inf)
            index = jnp.broadcast_to(at_entry, score.shape)
            # top_k prefers what comes first, so equal scores stay in the order of the index.
            score = jnp.concatenate([best.score, score], axis=-1)
            index = jnp.concatenate([best.index, index], axis=-1)
            score, place = jax.lax.top_k(score, picks)
            return Picks(jnp.take_along_axis(index, place, axis=-1), score)

        best = jax.lax.fori_loop(first, stop, step, none)
        return Picks(jnp.where(best.score > -jnp.inf, best.index, -1), best.score)

    index, score = jax.lax.map(pick, (*queries, first, stop))
    length = query.shape[1]
    return Picks(tiles.join(index, length), tiles.join(score, length))


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
    blocks: Blocks | None = None,
) -> Picks:
    """See `api.index_topk`; `blocks` comes from the shapes unless given."""
    blocks = blocks or blocked_heuristic(query.shape, key.shape[1], picks)
    operands = query, weight, key, position, end, segment, entry_segment
    return _index_topk(*operands, picks, blocks.gradient, blocks)
