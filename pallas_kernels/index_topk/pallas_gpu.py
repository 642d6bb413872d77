# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The lightning indexer on NVIDIA GPUs: scores in Triton, the choice by XLA.

Scores of a tile of queries and entries are summed over heads in registers, and those of a few
queries and all entries exist at a time: Triton has no sort, XLA's `top_k` has. Tiles that no query
may see cost no product.

Floor of the scores: 2 N H operations for each query and visible entry: DeepSeek-V4-Flash (N = 64,
H = 128) at T = 131072 has 2.1 G pairs, 35 TFLOP, 36 ms at 989 TFLOP/s (H100); they are written and
read once, 17 GB, 10 ms at 3.35 TB/s. What the choice costs on a GPU is not known. Lowered for CUDA
and run in interpret mode; not run on a GPU.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int

from pallas_kernels import tiles, triton
from pallas_kernels.block_sizes import block_sizes
from pallas_kernels.index_topk.config import blocked_heuristic
from pallas_kernels.index_topk.gradient import with_gradient
from pallas_kernels.index_topk.reference import Picks
from pallas_kernels.masks import NEVER


class Blocks(NamedTuple):
    """Queries and entries in a tile, and queries whose scores exist at once."""

    query: int
    entry: int
    rows: int


def gpu_heuristic(batch: int, queries: int, entries: int) -> Blocks:
    """Square tiles, and as many queries as the scores leave room for."""
    sizes = block_sizes("index_topk", "gpu")
    length = sizes["length"]
    most = sizes["scores"] // (batch * max(entries, length)) // length * length
    return Blocks(length, length, min(max(most, length), -(-queries // length) * length))


def _kernel(query, weight, key, position, end, segment, entry_segment, score, *, blocks):
    j, i, b = (pl.program_id(axis) for axis in range(3))
    rows = pl.ds(i * blocks.query, blocks.query)
    columns = pl.ds(j * blocks.entry, blocks.entry)
    seen = end[b, columns][None] <= position[b, rows][:, None]
    seen &= entry_segment[b, columns][None] == segment[b, rows][:, None]
    keys = key[b, columns, :]

    def head(n, total):
        dots = triton.dot(query[b, rows, n, :], keys, (1, 1))
        return total + weight[b, rows, n][:, None] * jnp.maximum(dots, 0)

    zeros = jnp.zeros((blocks.query, blocks.entry), jnp.float32)
    heads = jnp.max(seen.astype(jnp.int32)) * query.shape[2]
    found = jax.lax.fori_loop(0, heads, head, zeros)
    found = jnp.where(found == 0, 0.0, found)  # top_k puts -0 below 0, which are a tie
    score[b, rows, columns] = jnp.where(seen, found, -jnp.inf)


def _select(query, weight, key, position, end, segment, entry_segment, picks, how) -> Picks:
    blocks, interpret = how
    batch, queries, heads, head_dim = query.shape
    key, end = tiles.padded(key, blocks.entry), tiles.padded(end, blocks.entry, NEVER)
    entry_segment = tiles.padded(entry_segment, blocks.entry)
    entries = key.shape[1]
    split = functools.partial(tiles.split, block=blocks.rows)

    def pick(args: tuple[Array, ...]) -> Picks:
        q, w, at, own = args
        score = triton.call(
            functools.partial(_kernel, blocks=blocks),
            (q, w, key, at, end, own, entry_segment),
            jax.ShapeDtypeStruct((batch, blocks.rows, entries), jnp.float32),
            grid=(entries // blocks.entry, blocks.rows // blocks.query, batch),
            flops=2 * heads * head_dim * batch * blocks.rows * entries,
            exponentials=0,
            interpret=interpret,
        )
        missing = max(picks - entries, 0)
        score = jnp.pad(score, ((0, 0), (0, 0), (0, missing)), constant_values=-jnp.inf)
        score, index = jax.lax.top_k(score, picks)
        return Picks(jnp.where(score > -jnp.inf, index, -1), score)

    wide = split(weight.astype(jnp.float32))
    index, score = jax.lax.map(pick, (split(query), wide, split(position, fill=-1), split(segment)))
    return Picks(tiles.join(index, queries), tiles.join(score, queries))


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
    interpret: Any = False,
) -> Picks:
    """See `api.index_topk`; `blocks` comes from the shapes unless given. Gradient of plain JAX.

    Raises:
        NotImplementedError: if there is no query, if operands are float64 or differ, or if H is no
            power of two from 16 on.
    """
    triton.check_dtypes(query=query)
    triton.check_head_dim(query.shape[3])
    if not query.size or key.dtype != query.dtype:
        raise NotImplementedError(f"query {query.shape} {query.dtype}, key {key.dtype}.")
    blocks = blocks or gpu_heuristic(query.shape[0], query.shape[1], key.shape[1])
    gradient = blocked_heuristic(query.shape, key.shape[1], picks).gradient
    operands = query, weight, key, position, end, segment, entry_segment
    return _index_topk(*operands, picks, gradient, (blocks, interpret))
