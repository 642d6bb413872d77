# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention over picked entries on NVIDIA GPUs: forward in Triton, backward in plain JAX.

A program takes one query and a tile of its heads through the exact tokens and the picked entries: a
tile of rows is gathered by index, and all heads of the tile share it, so that the products fill
matrix instructions. Tiles of heads gather the same rows one after the other, from the cache.

Floor: as on TPU, P rows a query, 68.7 GB for DeepSeek-V4-Flash at T = 131072, 21 ms at 3.35 TB/s
(H100), and 11 TFLOP, 11 ms at 989 TFLOP/s. Lowered for CUDA and run in interpret mode; not run on a
GPU.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int

from pallas_kernels import triton
from pallas_kernels.block_sizes import block_sizes
from pallas_kernels.selected_attention import xla_blocked
from pallas_kernels.selected_attention.config import blocked_heuristic
from pallas_kernels.tiles import Pair

LOWEST = float(jnp.finfo(jnp.float32).min)


class Blocks(NamedTuple):
    """Heads and rows in a tile."""

    head: int
    row: int


def gpu_heuristic(groups: int, head_dim: int) -> Blocks:
    """Tiles whose sums, heads x H in float32, leave registers for what is multiplied."""
    sizes = block_sizes("selected_attention", "gpu")
    return Blocks(min(max(sizes["sums"] // head_dim, 16), groups), sizes["length"])


def _kernel(query, near, entry, index, segment, sink, out, *, window, blocks):
    t, tile, b = (pl.program_id(axis) for axis in range(3))
    heads = pl.ds(tile * blocks.head, blocks.head)
    q = query[b, t, heads, :]
    kv_head = jax.lax.div(tile * blocks.head, query.shape[2] // near[0].shape[2])
    own = near[0].shape[1] - query.shape[1] + t
    own_segment = segment[b, own]

    def add(state, pair, at, read):
        top, total, mixed = state
        k, v = (ref[b, at, kv_head, :] for ref in (pair[0], pair[-1]))
        scores = triton.dot(q, k, (1, 1)) * q.shape[1] ** -0.5
        scores = jnp.where(read[None], scores, -jnp.inf)
        new = jnp.maximum(top, jnp.max(scores, axis=1))
        weight, scale = jnp.exp(scores - new[:, None]), jnp.exp(top - new)
        given = triton.dot(weight.astype(v.dtype), v, (1, 0))
        return new, total * scale + jnp.sum(weight, axis=1), mixed * scale[:, None] + given

    def add_near(i, state):
        at = own - (window - 1) + i * blocks.row + jnp.arange(blocks.row)
        real = (at >= 0) & (at <= own)
        at = jnp.clip(at, 0, own)
        return add(state, near, at, real & (segment[b, at] == own_segment))

    def add_far(i, state):
        at = index[b, t, pl.ds(i * blocks.row, blocks.row)]
        return add(state, entry, jnp.maximum(at, 0), at >= 0)

    state = (
        jnp.full(blocks.head, LOWEST, jnp.float32) if sink is None else sink[heads],
        jnp.full(blocks.head, 0.0 if sink is None else 1.0, jnp.float32),
        jnp.zeros(q.shape, jnp.float32),
    )
    state = jax.lax.fori_loop(0, -(-window // blocks.row), add_near, state)
    state = jax.lax.fori_loop(0, index.shape[2] // blocks.row, add_far, state)
    _, total, mixed = state
    out[b, t, heads, :] = (mixed / total[:, None]).astype(out.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7, 8))
def _attend(query, near, entry, index, segment, sink, window, blocks, interpret):
    batch, queries, heads, head_dim = query.shape
    missing = -index.shape[2] % blocks.row
    index = jnp.pad(index, ((0, 0), (0, 0), (0, missing)), constant_values=-1)
    count = batch * queries * heads * (index.shape[2] + window)
    wide = None if sink is None else sink.astype(jnp.float32)
    return triton.call(
        functools.partial(_kernel, window=window, blocks=blocks),
        (query, near, entry, index, segment, wide),
        jax.ShapeDtypeStruct(query.shape, query.dtype),
        grid=(queries, heads // blocks.head, batch),
        flops=4 * head_dim * count,
        exponentials=count,
        interpret=interpret,
    )


def _forward(query, near, entry, index, segment, sink, window, blocks, interpret):
    kept = query, near, entry, index, segment, sink
    return _attend(*kept, window, blocks, interpret), kept


def _backward(window, blocks, interpret, kept, cotangent):
    query, near, _, index, *_ = kept
    tile = blocked_heuristic(query.shape, near[0].shape[2], window, index.shape[2])
    return xla_blocked.backward(window, tile, kept, cotangent)


_attend.defvjp(_forward, _backward)


def selected_attention(
    query: Float[Array, "B Q N H"],
    near: Pair,
    entry: Pair,
    index: Int[Array, "B Q P"],
    segment: Int[Array, "B X"],
    sink: Float[Array, "N"] | None,
    *,
    window: int,
    blocks: Blocks | None = None,
    interpret: Any = False,
) -> Float[Array, "B Q N H"]:
    """See `api.selected_attention`; `blocks` comes from the shapes unless given.

    Raises:
        NotImplementedError: if there is no query, if operands are float64, if H is no power of two
            from 16 on, or if as many heads do not share a key-value head.
    """
    triton.check_dtypes(query=query)
    triton.check_head_dim(query.shape[3])
    groups = query.shape[2] // near[0].shape[2]
    if groups < 16 or groups & (groups - 1):
        raise NotImplementedError(f"N / K={groups} is no power of two from 16 on, as tiles are.")
    if not query.size:
        raise NotImplementedError(f"query.shape={query.shape}: there is nothing to do.")
    blocks = blocks or gpu_heuristic(groups, query.shape[3])
    return _attend(query, near, entry, index, segment, sink, window, blocks, interpret)
