# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Pooling over chunks of one length on TPU, forward and backward: one pass over the tokens.

Entries lie in sublanes: the row i of 16 chunks at once is a strided read, so that softmax and sum
over a window are elementwise. Strided reads are of 32-bit words in panels of 128 channels, so the
rows of a slab of chunks are copied to such panels first. The chunks that its first entries overlap
with were left there by the slab before. The backward pass walks from the end: a slab leaves its
first entries to the chunks that they overlap with.

Operands are viewed as [B, T, L D]: nothing is copied if they were computed in that shape.

Floor of the forward pass: it reads T x L D payloads and T x L G scores and writes E x D entries and
a logsumexp of E x G in float32. At T = 131072 and 819 GB/s (v5e), with payloads in bfloat16 and
scores in float32, Qwen3-0.6B (W8/S8, D = 1024, G = 8) moves 307 MB in 0.37 ms; DeepSeek-V4
(D = G = 512) 906 MB in 1.1 ms for CSA (S = 4, L = 2), 406 MB in 0.5 ms for HCA (S = 128). The
backward pass reads the same and the cotangents, and writes gradients as large as payloads and
scores: about twice that. 10 vector operations a channel take less.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from pallas_kernels.block_sizes import block_sizes
from pallas_kernels.chunk_pool.config import TPU_SLAB, Blocks, tpu_heuristic


def _panels(width: int) -> list[tuple[int, int]]:
    """First channel of every 128, and how many there are: strided reads want no more in a row."""
    return [(at, min(128, width - at)) for at in range(0, width, 128)]


def _gates_of(p: int, channels: int, gates: int) -> list[tuple[int, int]]:
    """The gates of the channels in panel p, and the lane at which each starts."""
    width = channels // gates
    found = range(128 * p // width, min((128 * p + 127) // width + 1, gates))
    return [(g, g * width - 128 * p) for g in found]


def _expand(gate: Float[Array, "X 128"], p: int, channels: int, gates: int) -> Array:
    """The gate before each channel of panel p; all gates are in one panel, or G = D."""
    if gates == channels:
        return gate
    lane = jax.lax.broadcasted_iota(jnp.int32, gate.shape, 1)
    (first, _), *rest = _gates_of(p, channels, gates)
    spread = jnp.broadcast_to(gate[:, first : first + 1], gate.shape)
    for g, start in rest:
        own = jnp.broadcast_to(gate[:, g : g + 1], gate.shape)
        spread = jnp.where(lane < start, spread, own)
    return spread


def _collapse(x: Float[Array, "X 128"], p: int, channels: int, gates: int) -> Array:
    """Sums over the channels of each gate, the gates in lanes: the transpose of `_expand`."""
    if gates == channels:
        return x
    lane = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
    sums = jnp.zeros_like(x)
    for g, start in _gates_of(p, channels, gates):
        own = jnp.where((lane >= start) & (lane < start + channels // gates), x, 0)
        sums = jnp.where(lane == g, jnp.sum(own, axis=1, keepdims=True), sums)
    return sums


def _copy(source, target, first: Array, offset: int, steps: int, lanes: int, *, into: bool) -> None:
    """Widens rows of a block `into` the panels of each lane, or brings them back to their dtype."""
    width = source.shape[2] // lanes
    panels = [(at + lane * width, w) for lane in range(lanes) for at, w in _panels(width)]

    def some(i: Array, none: None) -> None:
        here = pl.ds(pl.multiple_of(first + i * TPU_SLAB, TPU_SLAB), TPU_SLAB)
        there = pl.ds(pl.multiple_of(offset + i * TPU_SLAB, 8), TPU_SLAB)
        for p, (at, w) in enumerate(panels):
            if into:
                target[p, there, pl.ds(0, w)] = source[0, here, pl.ds(at, w)].astype(target.dtype)
            else:
                source[0, here, pl.ds(at, w)] = target[p, there, pl.ds(0, w)].astype(source.dtype)

    jax.lax.fori_loop(0, steps, some, None)


def _for_each_slab(entries: int, body: Callable, *, reverse: bool = False) -> None:
    """Calls body(first entry) for the slabs of a tile."""
    count = entries // TPU_SLAB

    def step(i: Array, none: None) -> None:
        body(pl.multiple_of((count - 1 - i if reverse else i) * TPU_SLAB, TPU_SLAB))

    jax.lax.fori_loop(0, count, step, None)


def _forward_kernel(payload, score, bias, out, lse, values, scores, norm, *, lanes, unroll):
    stride, gates, channels = bias.shape[2], lse.shape[2], out.shape[2]
    for_each_row = functools.partial(jax.lax.fori_loop, 0, stride, unroll=unroll)
    gate_panels, channel_panels = _panels(gates), _panels(channels)
    before = (lanes - 1) * stride  # rows of the chunks before
    offset = values.shape[1] - TPU_SLAB * stride

    @pl.when(pl.program_id(1) == 0)
    def _():  # there are none before the first
        values[...] = jnp.zeros_like(values)
        scores[...] = jnp.full(scores.shape, -jnp.inf, scores.dtype)

    def rows(i, lane):
        return pl.ds(offset - (lanes - 1 - lane) * stride + i, TPU_SLAB, stride=stride)

    def slab(first):
        entry = pl.ds(first, TPU_SLAB)
        _copy(payload, values, first * stride, offset, stride, lanes, into=True)
        _copy(score, scores, first * stride, offset, stride, lanes, into=True)
        for p, (at, w) in enumerate(gate_panels):

            def biased(i, lane, p=p):
                place = lane * len(gate_panels) + p
                return scores.at[place][rows(i, lane), :] + bias.at[0, place][pl.ds(i, 1), :]

            def highest(i, top, biased=biased):
                for lane in range(lanes):
                    top = jnp.maximum(top, biased(i, lane))
                return top

            top = jnp.full((TPU_SLAB, 128), -jnp.inf, jnp.float32)
            top = for_each_row(highest, top)

            def weigh(i, total, biased=biased, top=top, p=p):
                for lane in range(lanes):
                    weight = jnp.exp(biased(i, lane) - top)
                    # Each score is read by one entry, so that its weight may take its place.
                    scores.at[lane * len(gate_panels) + p][rows(i, lane), :] = weight
                    total += weight
                return total

            total = for_each_row(weigh, jnp.zeros((TPU_SLAB, 128), jnp.float32))
            norm[p] = total
            lse[0, entry, pl.ds(at, w)] = (top + jnp.log(total))[:, :w]
        for p, (at, w) in enumerate(channel_panels):

            def mix(i, mixed, p=p):
                for lane in range(lanes):
                    own = p if gates == channels else 0
                    gate = scores.at[lane * len(gate_panels) + own][rows(i, lane), :]
                    x = values.at[lane * len(channel_panels) + p][rows(i, lane), :]
                    mixed += _expand(gate, p, channels, gates) * x
                return mixed

            mixed = for_each_row(mix, jnp.zeros((TPU_SLAB, 128), jnp.float32))
            pooled = mixed / _expand(norm[p if gates == channels else 0], p, channels, gates)
            out[0, entry, pl.ds(at, w)] = pooled[:, :w].astype(out.dtype)
        if before:
            for kept in (values, scores):
                last = kept[:, pl.ds(kept.shape[1] - before, before), :]
                kept[:, pl.ds(offset - before, before), :] = last

    _for_each_slab(out.shape[1], slab)


def _backward_kernel(
    payload,
    score,
    bias,
    out,
    lse,
    ct,
    d_payload,
    d_score,
    d_bias,
    values,
    scores,
    centre,
    norm,
    upstream,
    *,
    lanes,
    entries,
    unroll,
):
    stride, gates, (tile, channels) = bias.shape[2], lse.shape[2], out.shape[1:]
    gate_panels, channel_panels = _panels(gates), _panels(channels)
    start = (pl.num_programs(1) - 1 - pl.program_id(1)) * tile
    by_entry = ((out, centre, 0.0), (lse, norm, jnp.inf), (ct, upstream, 0.0))

    @pl.when(pl.program_id(1) == 0)
    def _():  # no entry after the last: its weights are exp(-inf)
        d_bias[...] = jnp.zeros_like(d_bias)
        for _, kept, nothing in by_entry:
            kept[...] = jnp.full(kept.shape, nothing, kept.dtype)

    def slab(first):
        _copy(payload, values, first * stride, 0, stride, lanes, into=True)
        _copy(score, scores, first * stride, 0, stride, lanes, into=True)
        row = jax.lax.broadcasted_iota(jnp.int32, (TPU_SLAB, 1), 0)
        exists = start + first + row < entries
        for ref, kept, nothing in by_entry:
            if lanes > 1:
                kept[:, pl.ds(TPU_SLAB, lanes - 1), :] = kept[:, pl.ds(0, lanes - 1), :]
            for p, (at, w) in enumerate(_panels(ref.shape[2])):
                x = ref[0, pl.ds(first, TPU_SLAB), pl.ds(at, w)].astype(jnp.float32)
                kept[p, pl.ds(0, TPU_SLAB), pl.ds(0, w)] = jnp.where(exists, x, nothing)

        def pull(i, none):
            rows = pl.ds(i, TPU_SLAB, stride=stride)
            for lane in range(lanes):
                entry = pl.ds(lanes - 1 - lane, TPU_SLAB)
                weights, sums = [], []
                for p in range(len(gate_panels)):
                    place = lane * len(gate_panels) + p
                    s = scores.at[place][rows, :] + bias.at[0, place][pl.ds(i, 1), :]
                    s = jnp.where(exists, s, -jnp.inf)
                    weights.append(jnp.exp(s - norm[p, entry, :]))
                for p in range(len(channel_panels)):
                    own = p if gates == channels else 0
                    weight = _expand(weights[own], p, channels, gates)
                    place = lane * len(channel_panels) + p
                    pulled = weight * upstream[p, entry, :]
                    away = jnp.where(exists, values.at[place][rows, :] - centre[p, entry, :], 0)
                    values.at[place][rows, :] = pulled
                    sums.append(_collapse(pulled * away, p, channels, gates))
                if gates != channels:
                    sums = [sum(sums)]
                for p, by_score in enumerate(sums):
                    place = lane * len(gate_panels) + p
                    scores.at[place][rows, :] = by_score
                    d_bias.at[0, place][pl.ds(i, 1), :] += jnp.sum(by_score, axis=0, keepdims=True)

        jax.lax.fori_loop(0, stride, pull, None, unroll=unroll)
        _copy(d_payload, values, first * stride, 0, stride, lanes, into=False)
        _copy(d_score, scores, first * stride, 0, stride, lanes, into=False)

    _for_each_slab(tile, slab, reverse=True)


def _flat(x: Float[Array, "B E S L X"]) -> Float[Array, "B T Y"]:
    """Tokens in rows, the lanes of a token beside each other."""
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], -1)


def _call(kernel, operands, outputs, scratch, tile, index, interpret):
    """The grid that both passes share.

    Args:
        kernel: called with references to operands, outputs and scratch.
        operands: what the rows of each are, "token", "entry" or "place", and the array; first the
            payload, then scores and bias.
        outputs: the same of each result, with a shape and dtype for the array.
        scratch: shapes of scratch in VMEM, float32.
        tile: entries in a tile.
        index: from a step of the grid to the tile.
        interpret: see `pl.pallas_call`.
    """
    payload, score, bias = (x for _, x in operands[:3])
    stride = bias.shape[2]
    rows = {"token": tile * stride, "entry": tile}

    def spec(kind: str, x: Any) -> pl.BlockSpec:
        if kind == "place":
            own = x.shape[0] > 1
            return pl.BlockSpec((1, *x.shape[1:]), lambda b, t: (b if own else 0, 0, 0, 0))
        return pl.BlockSpec((1, rows[kind], x.shape[2]), lambda b, t: (b, index(t), 0))

    arrays, shapes = [x for _, x in operands], [x for _, x in outputs]
    return pl.pallas_call(
        kernel,
        grid=(payload.shape[0], pl.cdiv(payload.shape[1] // stride, tile)),
        in_specs=[spec(*x) for x in operands],
        out_specs=[spec(*x) for x in outputs],
        out_shape=shapes,
        scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=block_sizes("chunk_pool", "tpu")["vmem_bytes"],
        ),
        cost_estimate=pl.CostEstimate(
            flops=10 * payload.size,
            transcendentals=2 * score.size,
            bytes_accessed=sum(x.size * x.dtype.itemsize for x in (*arrays, *shapes)),
        ),
        interpret=interpret,
    )(*arrays)


def _rows(payload, score, bias):
    """Operands that both passes read; bias in float32 and in panels, [1, L P, S, 128]."""
    stride, lanes, gates = bias.shape
    bias = jnp.pad(bias.astype(jnp.float32), ((0, 0), (0, 0), (0, -gates % 128)))
    bias = jnp.moveaxis(bias.reshape(stride, -1, 128), 0, 1)[None]
    return [("token", _flat(payload)), ("token", _flat(score)), ("place", bias)]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _pool(payload, score, bias, blocks, interpret):
    return _forward(payload, score, bias, blocks, interpret)[0]


def _forward(payload, score, bias, blocks, interpret):
    batch, entries, stride, lanes, channels = payload.shape
    gates = score.shape[-1]
    values, scores = len(_panels(channels)), len(_panels(gates))
    # What the slab before left, in whole tiles of 8 sublanes.
    rows = TPU_SLAB * stride + -(-(lanes - 1) * stride // 8) * 8
    pooled, lse = _call(
        functools.partial(_forward_kernel, lanes=lanes, unroll=blocks.unroll),
        _rows(payload, score, bias),
        [
            ("entry", jax.ShapeDtypeStruct((batch, entries, channels), payload.dtype)),
            ("entry", jax.ShapeDtypeStruct((batch, entries, gates), jnp.float32)),
        ],
        [(lanes * values, rows, 128), (lanes * scores, rows, 128), (scores, TPU_SLAB, 128)],
        blocks.entry,
        lambda t: t,
        interpret,
    )
    return pooled, (payload, score, bias, pooled, lse)


def _backward(blocks, interpret, kept, cotangent):
    payload, score, bias, pooled, lse = kept
    batch, entries, stride, lanes, channels = payload.shape
    values, scores = len(_panels(channels)), len(_panels(score.shape[-1]))
    operands = _rows(payload, score, bias)
    tiles = pl.cdiv(entries, blocks.entry)
    rows, ahead = TPU_SLAB * stride, TPU_SLAB + -(-(lanes - 1) // 8) * 8
    like = [jax.ShapeDtypeStruct(x.shape, x.dtype) for _, x in operands[:2]]
    d_bias = jax.ShapeDtypeStruct((batch, *operands[2][1].shape[1:]), jnp.float32)
    d_payload, d_score, d_bias = _call(
        functools.partial(_backward_kernel, lanes=lanes, entries=entries, unroll=blocks.unroll),
        [*operands, ("entry", pooled), ("entry", lse), ("entry", cotangent)],
        [("token", like[0]), ("token", like[1]), ("place", d_bias)],
        [
            (lanes * values, rows, 128),
            (lanes * scores, rows, 128),
            (values, ahead, 128),
            (scores, ahead, 128),
            (values, ahead, 128),
        ],
        blocks.entry,
        lambda t: tiles - 1 - t,
        interpret,
    )
    # Out of its panels.
    d_bias = jnp.moveaxis(d_bias.sum(0), 0, 1).reshape(stride, lanes, -1)[..., : score.shape[-1]]
    return (
        d_payload.reshape(payload.shape),
        d_score.reshape(score.shape),
        d_bias.astype(bias.dtype),
    )


_pool.defvjp(_forward, _backward)


def chunk_pool(
    payload: Float[Array, "B E S L D"],
    score: Float[Array, "B E S L G"],
    bias: Float[Array, "S L G"],
    *,
    blocks: Blocks | None = None,
    interpret: Any = False,
) -> Float[Array, "B E D"]:
    """See `api.chunk_pool`; `blocks` comes from the shapes unless given.

    Raises:
        NotImplementedError: unless payload and scores are float32 or bfloat16 and there are entries
            of at most 17 lanes, a slab of which fits in VMEM.
    """
    for name, x in (("payload", payload), ("score", score)):
        if x.dtype not in (jnp.float32, jnp.bfloat16):
            raise NotImplementedError(f"{name}.dtype={x.dtype} is neither float32 nor bfloat16.")
    batch, entries, stride, lanes, channels = payload.shape
    if not batch * entries:
        raise NotImplementedError(f"payload.shape={payload.shape} has no entries.")
    if lanes > TPU_SLAB + 1:
        raise NotImplementedError(f"L={lanes} lanes reach further than a slab of {TPU_SLAB}.")
    blocks = blocks or tpu_heuristic(entries, stride, lanes * channels)
    gates = score.shape[-1]
    if gates > 128 and gates != channels:
        raise NotImplementedError(
            f"G={gates} gates for {channels} channels are neither few nor all."
        )
    padded = -(-gates // 128) * 128
    # Blocks of operands and gradients, each twice, and a slab in float32.
    token = lanes * (channels * (4 * payload.dtype.itemsize) + padded * 4 * score.dtype.itemsize)
    need = stride * (blocks.entry * token + TPU_SLAB * lanes * 4 * (channels + padded))
    if need > block_sizes("chunk_pool", "tpu")["vmem_bytes"]:
        raise NotImplementedError(f"chunks of {stride} x {lanes} x {channels} overflow VMEM.")
    return _pool(payload, score, bias, blocks, interpret)
