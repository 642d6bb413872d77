# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Pooling over chunks of one length on NVIDIA GPUs, forward and backward, in Triton.

A program owns a tile of entries and gates, [Le, Lg, channels of a gate], and walks through the rows
of a window with a running softmax, so each payload and score is read once in each lane. Backward, a
program owns the same tile of chunks and gives every row its gradients from the entry that pooled
it: nothing is added to by two programs.

Floor of the forward pass: payload and scores in, entries and a logsumexp out. 131072 tokens of 512
channels with a gate each, two lanes in windows of 4 (DeepSeek-V4 CSA, bfloat16, float32 scores):
0.90 GB, 0.27 ms at 3.35 TB/s (H100); backward about twice that. About 10 operations a number are
1.3 G, less. Lowered for CUDA and run in interpret mode; not run on a GPU.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels import tiles, triton
from pallas_kernels.block_sizes import block_sizes
from pallas_kernels.tiles import power_of_two_at_most

LOWEST = float(jnp.finfo(jnp.float32).min)


class Blocks(NamedTuple):
    """Entries and gates in a tile."""

    entry: int
    gate: int


def gpu_heuristic(entries: int, gates: int, channels: int) -> Blocks:
    """Tiles of a fixed number of channels, wide before tall; `channels` are those of a gate."""
    most = max(block_sizes("chunk_pool", "gpu")["tile"] // channels, 1)
    gate = min(gates & -gates, power_of_two_at_most(most), 128)
    return Blocks(min(power_of_two_at_most(most // gate), power_of_two_at_most(entries)), gate)


def _kernel_axes(blocks: Blocks) -> tuple[Array, Any]:
    entry = pl.program_id(0) * blocks.entry + jnp.arange(blocks.entry)
    return entry, pl.ds(pl.program_id(1) * blocks.gate, blocks.gate)


def _forward_kernel(payload, score, bias, out, lse, *, blocks):
    _, _, stride, lanes, _, channels = payload.shape
    entry, gates = _kernel_axes(blocks)
    b = pl.program_id(2)
    shape = (blocks.entry, blocks.gate)
    state = (
        jnp.full(shape, LOWEST, jnp.float32),
        jnp.zeros(shape, jnp.float32),
        jnp.zeros((*shape, channels), jnp.float32),
    )
    for lane in range(lanes):
        source = entry - (lanes - 1 - lane)

        def step(i, state, lane=lane, source=source):
            top, total, mixed = state
            at = (b, jnp.maximum(source, 0), i, lane, gates)
            biased = score[at].astype(jnp.float32) + bias[i, lane, gates].astype(jnp.float32)[None]
            biased = jnp.where((source >= 0)[:, None], biased, -jnp.inf)
            new = jnp.maximum(top, biased)
            weight, scale = jnp.exp(biased - new), jnp.exp(top - new)
            values = payload[(*at, slice(None))].astype(jnp.float32)
            mixed = mixed * scale[..., None] + weight[..., None] * values
            return new, total * scale + weight, mixed

        state = jax.lax.fori_loop(0, stride, step, state)
    top, total, mixed = state
    rows = pl.ds(pl.program_id(0) * blocks.entry, blocks.entry)
    out[b, rows, gates, :] = mixed / total[..., None]
    lse[b, rows, gates] = top + jnp.log(total)


def _backward_kernel(payload, score, bias, pooled, lse, ct, d_payload, d_score, *, blocks):
    _, entries, stride, lanes, _, _ = payload.shape
    chunk, gates = _kernel_axes(blocks)
    b = pl.program_id(2)
    rows = pl.ds(pl.program_id(0) * blocks.entry, blocks.entry)
    for lane in range(lanes):
        target = chunk + (lanes - 1 - lane)
        read = (target < entries)[:, None]
        by_entry = (b, jnp.minimum(target, entries - 1), gates)
        norm = jnp.where(read, lse[by_entry], jnp.inf)
        centre = pooled[(*by_entry, slice(None))]
        upstream = ct[(*by_entry, slice(None))].astype(jnp.float32)

        def step(i, none, lane=lane, norm=norm, centre=centre, upstream=upstream):
            at = (b, rows, i, lane, gates)
            biased = score[at].astype(jnp.float32) + bias[i, lane, gates].astype(jnp.float32)[None]
            pulled = jnp.exp(biased - norm)[..., None] * upstream
            values = payload[(*at, slice(None))].astype(jnp.float32)
            d_payload[(*at, slice(None))] = pulled.astype(d_payload.dtype)
            d_score[at] = jnp.sum(pulled * (values - centre), axis=-1)

        jax.lax.fori_loop(0, stride, step, None)


def _call(kernel, operands, outputs, blocks, interpret):
    payload = operands[0]
    batch, entries, _, _, gates, _ = payload.shape
    return triton.call(
        functools.partial(kernel, blocks=blocks),
        operands,
        tuple(jax.ShapeDtypeStruct(*output) for output in outputs),
        grid=(entries // blocks.entry, gates // blocks.gate, batch),
        flops=10 * payload.size,
        exponentials=2 * operands[1].size,
        interpret=interpret,
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _pool(payload, score, bias, blocks, interpret):
    return _forward(payload, score, bias, blocks, interpret)[0]


def _forward(payload, score, bias, blocks, interpret):
    shape = (*payload.shape[:2], *payload.shape[4:])
    outputs = (shape, jnp.float32), (shape[:3], jnp.float32)
    pooled, lse = _call(_forward_kernel, (payload, score, bias), outputs, blocks, interpret)
    # Kept in float32: what rounding takes from it would add up in the gradient of the bias.
    return pooled.astype(payload.dtype), (payload, score, bias, pooled, lse)


def _backward(blocks, interpret, kept, cotangent):
    payload, score, bias, *_ = kept
    outputs = (payload.shape, payload.dtype), (score.shape, jnp.float32)
    d_payload, d_score = _call(_backward_kernel, (*kept, cotangent), outputs, blocks, interpret)
    d_bias = d_score.sum((0, 1)).astype(bias.dtype)
    return d_payload, d_score.astype(score.dtype), d_bias


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
        NotImplementedError: if there is no entry, if operands are float64, or if a gate has a
            number of channels that is no power of two.
    """
    triton.check_dtypes(payload=payload, score=score)
    (batch, entries, *_, width), gates = payload.shape, score.shape[-1]
    channels = width // gates
    if channels & (channels - 1):
        raise NotImplementedError(f"D / G={channels} is no power of two, as tiles are.")
    if not payload.size:
        raise NotImplementedError(f"payload.shape={payload.shape}: there is nothing to do.")
    blocks = blocks or gpu_heuristic(entries, gates, channels)
    payload, score = tiles.padded(payload, blocks.entry), tiles.padded(score, blocks.entry)
    payload = payload.reshape(*payload.shape[:4], gates, channels)
    pooled = _pool(payload, score, bias, blocks, interpret)
    return pooled[:, :entries].reshape(batch, entries, width)
