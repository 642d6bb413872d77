# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention over picked entries on TPU: rows are fetched by index while the query before computes.

A grid step is a tile of queries. Their indices arrive in scalar memory ahead of the step; each
query starts one copy a pick from HBM into one of two buffers, and waits for all of its own at once.
The window of exact tokens of the whole tile is one copy. All heads of a query share the rows, so
that its scores are matrix products of N x H by H x (picks + tokens at hand).

A single row can be copied only as words of 32 bits: the two halves of a head in bfloat16 travel as
the low and high halves of such words, and the products are split alike.

Floor: P rows of K H channels a query, once for keys and once for values unless they are the same:
DeepSeek-V4-Flash (P = 512, H = 512, bfloat16, K = V) at T = 131072 reads 68.7 GB, 84 ms at 819 GB/s
(v5e). The products take 4 N H (P + window) = 84 MFLOP a query, 11 TFLOP, 56 ms at 197 TFLOP/s, so
that bytes bind; for DeepSeek-V4-Pro (N = 128, P = 1024) 168 and 201 ms, so that products do.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from pallas_kernels import tiles
from pallas_kernels.block_sizes import block_sizes
from pallas_kernels.masks import NEVER
from pallas_kernels.selected_attention import xla_blocked
from pallas_kernels.selected_attention.config import blocked_heuristic, tpu_heuristic
from pallas_kernels.tiles import Pair

# Rows in HBM at which a copy may start and end: what fills the sublanes in bfloat16.
ROWS = 16


def _fetch(entry_refs, index_ref, far_refs, semaphore, slot, b, t) -> None:
    """Starts the copies of the rows that query t of the tile picked, any row where it has none."""

    def start(p: Array, none: None) -> None:
        row = jnp.maximum(index_ref[0, t, p], 0)
        for entry, far in zip(entry_refs, far_refs, strict=True):
            pltpu.make_async_copy(entry.at[b, row], far.at[slot, p], semaphore.at[slot]).start()

    jax.lax.fori_loop(0, index_ref.shape[2], start, None)


def _wait(far_refs, semaphore, slot) -> None:
    """Waits until as many bytes have arrived as a buffer holds."""
    for far in far_refs:
        pltpu.make_async_copy(far.at[slot], far.at[slot], semaphore.at[slot]).wait()


def _dot(x: Array, y: Array, contract: int) -> Array:
    """Product in float32; `contract` is the axis of y that is summed with the last one of x."""
    return jax.lax.dot_general(
        x,
        y,
        (((1,), (contract,)), ((), ())),
        precision="highest" if y.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )


def _pack(x: Float[Array, "B E K H"]) -> Array:
    """Rows of 32-bit words, [B, E, 1, words]."""
    if x.dtype != jnp.float32:
        x = jax.lax.bitcast_convert_type(jnp.stack(jnp.split(x, 2, axis=-1), -1), jnp.uint32)
    return x.reshape(*x.shape[:2], 1, -1)


def _unpack(words: Array, dtype: jnp.dtype) -> list[Array]:
    """The channels of one head, in as many parts as a word holds."""
    if words.dtype == dtype:
        return [words]
    # A bfloat16 is the upper half of the float32 of the same value.
    low, high = words << 16, words & jnp.uint32(0xFFFF0000)
    return [jax.lax.bitcast_convert_type(x, jnp.float32).astype(dtype) for x in (low, high)]


def _scores(query: Array, parts: list[Array], mask: Array) -> Array:
    """Scores of rows whose channels come in parts."""
    head_dim = query.shape[1]
    channels = head_dim // len(parts)
    scores = sum(
        _dot(query[:, i * channels : (i + 1) * channels], part, 1) for i, part in enumerate(parts)
    )
    return jnp.where(mask, scores * head_dim**-0.5, -jnp.inf)


def _kernel(
    index_ref,
    own_segment_ref,
    picked_ref,
    segment_ref,
    sink_ref,
    query_ref,
    near_hbm,
    entry_hbm,
    out_ref,
    near_refs,
    far_refs,
    near_semaphore,
    far_semaphore,
    *,
    window: int,
) -> None:
    b, i = pl.program_id(0), pl.program_id(1)
    block, heads, head_dim = query_ref.shape[1:]
    length = segment_ref.shape[2]
    kv_heads = near_refs[0].shape[1] // head_dim
    groups, words = heads // kv_heads, far_refs[0].shape[3] // kv_heads
    first = pl.multiple_of(i * block, ROWS)
    copies = [
        pltpu.make_async_copy(hbm.at[b, pl.ds(first, length)], vmem, near_semaphore)
        for hbm, vmem in zip(near_hbm, near_refs, strict=True)
    ]
    for copy in copies:
        copy.start()
    _fetch(entry_hbm, index_ref, far_refs, far_semaphore, 0, b, 0)
    for copy in copies:
        copy.wait()
    # Where each row at hand lies, counted from the first query of the tile.
    offset = jax.lax.broadcasted_iota(jnp.int32, (1, length), 1) - (length - block)

    def attend(t: Array, none: None) -> None:
        slot = jax.lax.rem(t, 2)

        @pl.when(t + 1 < block)
        def _():
            _fetch(entry_hbm, index_ref, far_refs, far_semaphore, 1 - slot, b, t + 1)

        near_mask = (offset <= t) & (offset > t - window)
        near_mask &= segment_ref[0] == own_segment_ref[0, 0, t]
        far_mask = picked_ref[0, pl.ds(t, 1), :] >= 0
        _wait(far_refs, far_semaphore, slot)
        for h in range(kv_heads):
            rows = pl.ds(h * groups, groups)
            query, sink = query_ref[0, t, rows, :], sink_ref[rows, :]
            near = [[ref[:, pl.ds(h * head_dim, head_dim)]] for ref in near_refs]
            far = [
                _unpack(ref[slot, :, 0, pl.ds(h * words, words)], query.dtype) for ref in far_refs
            ]
            by_row = _scores(query, near[0], near_mask), _scores(query, far[0], far_mask)
            top = sink
            for x in by_row:
                top = jnp.maximum(top, jnp.max(x, axis=1, keepdims=True))
            total, mixed = jnp.exp(sink - top), jnp.zeros((groups, head_dim), jnp.float32)
            for x, parts in zip(by_row, (near[-1], far[-1]), strict=True):
                weight = jnp.exp(x - top)
                total += jnp.sum(weight, axis=1, keepdims=True)
                products = [_dot(weight.astype(query.dtype), part, 0) for part in parts]
                mixed += jnp.concatenate(products, axis=1)
            out_ref[0, t, rows, :] = (mixed / total).astype(out_ref.dtype)

    jax.lax.fori_loop(0, block, attend, None)


def _forward_pass(query, near, entry, index, segment, sink, window, block, interpret) -> Array:
    batch, queries, heads, head_dim = query.shape
    width = near[0].shape[2] * head_dim
    margin = -(-(window - 1) // ROWS) * ROWS
    length = margin + block
    query, index = tiles.padded(query, block), tiles.padded(index, block, -1)
    count, picks = query.shape[1] // block, index.shape[2]

    def before(x: Array) -> Array:
        """The rows that tiles read one after the other; [B, margin + Q, K H]."""
        return xla_blocked.with_window(x.reshape(batch, -1, width), queries, margin, block)

    segment = xla_blocked.with_window(segment, queries, margin, block, NEVER)
    packed = tuple(map(_pack, entry))
    at_hand = block * jnp.arange(count)[:, None] + jnp.arange(length)
    near_segment, own_segment = segment[:, at_hand], segment[:, margin:]
    sinks = jnp.full(heads, -jnp.inf) if sink is None else sink.astype(jnp.float32)
    hbm = pl.BlockSpec(memory_space=pl.ANY)
    pair = tuple(hbm for _ in near)
    by_query = pl.BlockSpec((1, block, heads, head_dim), lambda b, i: (b, i, 0, 0))
    dtype, itemsize = query.dtype, query.dtype.itemsize
    size = query.size * (picks + window)
    return pl.pallas_call(
        functools.partial(_kernel, window=window),
        grid=(batch, count),
        in_specs=[
            pl.BlockSpec((1, block, picks), lambda b, i: (b, i, 0), memory_space=pltpu.SMEM),
            pl.BlockSpec(
                (1, 1, block), lambda b, i: (b * count + i, 0, 0), memory_space=pltpu.SMEM
            ),
            pl.BlockSpec((1, block, picks), lambda b, i: (b, i, 0)),
            pl.BlockSpec((1, 1, length), lambda b, i: (b * count + i, 0, 0)),
            pl.BlockSpec((heads, 1), lambda b, i: (0, 0)),
            by_query,
            pair,
            pair,
        ],
        out_specs=by_query,
        out_shape=jax.ShapeDtypeStruct(query.shape, dtype),
        scratch_shapes=[
            tuple(pltpu.VMEM((length, width), dtype) for _ in near),
            tuple(pltpu.VMEM((2, picks, *x.shape[2:]), x.dtype) for x in packed),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((2,)),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel"),
            vmem_limit_bytes=block_sizes("selected_attention", "tpu")["vmem_bytes"],
        ),
        cost_estimate=pl.CostEstimate(
            flops=4 * size,
            transcendentals=size // head_dim,
            bytes_accessed=itemsize * (2 * query.size + len(near) * width * index.size),
        ),
        interpret=interpret,
    )(
        index,
        own_segment.reshape(batch * count, 1, block),
        index,
        near_segment.reshape(batch * count, 1, length),
        sinks[:, None],
        query,
        tuple(map(before, near)),
        packed,
    )[:, :queries]


def _vmem(query: Array, near: Pair, picks: int, window: int, block: int) -> int:
    """Bytes of queries and results, twice, of rows at hand and picked, and of a query's scores."""
    _, _, heads, head_dim = query.shape
    kv_heads, length = near[0].shape[2], window + ROWS + block
    rows = len(near) * kv_heads * head_dim * (length + 2 * picks)
    channels = 4 * block * heads * head_dim + rows
    return channels * query.dtype.itemsize + 16 * heads // kv_heads * (length + picks)


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7, 8))
def _attend(query, near, entry, index, segment, sink, window, block, interpret):
    return _forward_pass(query, near, entry, index, segment, sink, window, block, interpret)


def _forward(query, near, entry, index, segment, sink, window, block, interpret):
    kept = query, near, entry, index, segment, sink
    return _forward_pass(*kept, window, block, interpret), kept


def _backward(window, block, interpret, kept, cotangent):
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
    block: int | None = None,
    interpret: Any = False,
) -> Float[Array, "B Q N H"]:
    """See `api.selected_attention`; `block` queries a tile. The gradient is that of plain JAX.

    Raises:
        NotImplementedError: unless operands are float32, or bfloat16 with an even H, there are
            queries and picks, and the window and the picks of two queries fit in VMEM.
    """
    if query.dtype not in (jnp.float32, jnp.bfloat16):
        raise NotImplementedError(f"query.dtype={query.dtype} is neither float32 nor bfloat16.")
    if query.dtype == jnp.bfloat16 and query.shape[3] % 2:
        raise NotImplementedError(f"H={query.shape[3]} is odd, so that bfloat16 makes no words.")
    if not query.size * index.size:
        raise NotImplementedError(f"index.shape={index.shape}: there is nothing to do.")
    block = block or tpu_heuristic(query.shape[1], index.shape[2])
    need = _vmem(query, near, index.shape[2], window, block)
    if need > block_sizes("selected_attention", "tpu")["vmem_bytes"]:
        raise NotImplementedError(
            f"window={window} and P={index.shape[2]} picks of {near[0].shape[2]} x {query.shape[3]}"
            f" channels take {need} bytes, which overflow VMEM."
        )
    return _attend(query, near, entry, index, segment, sink, window, block, interpret)
