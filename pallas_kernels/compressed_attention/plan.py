# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Which tiles of queries and rows meet in the TPU kernels of compressed attention."""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels import tiles
from pallas_kernels.compressed_attention.config import TpuBlocks
from pallas_kernels.compressed_attention.masks import Reads
from pallas_kernels.compressed_attention.reference import Pair
from pallas_kernels.masks import NEVER


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


class Plan(NamedTuple):
    """A call, cut into tiles.

    Attributes:
        shape: of the queries, [B, Q, N, H].
        parts: tiles of heads that share keys.
        span: most exact tokens that a query reads, or None.
        blocks: sizes of the tiles.
        asked: position, since and document of what lies in the lanes of each tile of queries.
        kinds: of the rows: exact tokens, and entries if there are any.
        rows: their operands.
    """

    shape: tuple[int, ...]
    parts: int
    span: int | None
    blocks: TpuBlocks
    asked: Int[Array, "B C 3 L"]
    kinds: tuple[Kind, ...]
    rows: tuple[Rows, ...]

    @property
    def lanes(self) -> int:
        """Queries of a tile times its heads."""
        return self.blocks.heads * self.blocks.query

    def pairs(self, near: bool) -> int:
        """Scores of one kind, were the queries in causal order."""
        batch, queries, heads, _ = self.shape
        count = self.rows[0 if near else 1].pair[0].shape[2]
        read = min(self.span, count) if near and self.span is not None else count // 2
        return batch * heads * queries * read


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


def bounds(seen: Bool[Array, "B Q C"]) -> tuple[Int[Array, "X"], Int[Array, "X"]]:
    """First tile that each tile of queries sees, and one past the last, of all rows in a row."""
    count = jnp.arange(seen.shape[2], dtype=jnp.int32)
    stop = jnp.max(jnp.where(seen, count + 1, 0), axis=2)
    first = jnp.min(jnp.where(seen, count, stop[..., None]), axis=2)
    return first.reshape(-1), stop.reshape(-1)


def most_visits(span: int, of: int, to: int, of_count: int, to_count: int, *, back: bool) -> int:
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
            blocks=most_visits(span, blocks.query, length, queries, count, back=True),
            queries=most_visits(span, length, blocks.query, count, queries, back=False),
        )
    return kind, Rows(pair, ends, _seen(ask, end, document, near, blocks.query, length))


def plan(
    query: Float[Array, "B Q N H"],
    near: Pair,
    entry: Pair,
    reads: Reads,
    span: int | None,
    blocks: TpuBlocks,
) -> Plan:
    """Cuts a call of `api.compressed_attention` into tiles."""
    batch = max(x.shape[0] for x in reads)
    position, since, segment, token_segment, end, entry_segment = (
        jnp.broadcast_to(x, (batch, x.shape[1])) for x in reads
    )
    padded = functools.partial(tiles.padded, block=blocks.query)
    ask = Ask(padded(position, fill=-1), padded(since), padded(segment))
    tokens, kv_heads = near[0].shape[1:3]
    token = jnp.broadcast_to(jnp.arange(tokens, dtype=jnp.int32), (batch, tokens))
    found = [_cut(near, token, token_segment, ask, span, blocks, near=True)]
    if entry[0].shape[1]:
        found.append(_cut(entry, end, entry_segment, ask, span, blocks, near=False))
    kinds, rows = zip(*found, strict=True)
    asked = jnp.stack([_tile(x, blocks.query) for x in ask], axis=2)
    asked = jnp.tile(asked, (1, 1, 1, blocks.heads))
    parts = query.shape[2] // kv_heads // blocks.heads
    return Plan(query.shape, parts, span, blocks, asked, kinds, rows)
