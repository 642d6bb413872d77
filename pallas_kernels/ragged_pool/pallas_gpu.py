# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Pooling over chunks of any length on NVIDIA GPUs: forward in Triton, backward in plain JAX.

A program owns one entry and a tile of channels and walks through the tokens of its chunk with a
running softmax. The gradient of a token needs its own entry alone, so that backward there is no sum
over tokens, and a gather that XLA fuses with what follows does it.

Floor of the forward pass: values and scores in, entries and a logsumexp out: at T = 131072,
D = 512, bfloat16, E = T / 8 that is 319 MB, 0.10 ms at 3.35 TB/s (H100). About 10 operations a
number are 0.7 G, less. Lowered for CUDA and run in interpret mode; not run on a GPU.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int

from pallas_kernels import tiles, triton
from pallas_kernels.block_sizes import block_sizes
from pallas_kernels.ragged_pool.xla_blocked import chunk_bounds

LOWEST = float(jnp.finfo(jnp.float32).min)


class Blocks(NamedTuple):
    """Tokens and channels in a tile."""

    token: int
    channel: int


def gpu_heuristic(channels: int) -> Blocks:
    """Tiles of a fixed size, as wide as the channels can be cut."""
    channel = min(channels & -channels, 128)
    return Blocks(max(block_sizes("ragged_pool", "gpu")["tile"] // channel, 1), channel)


def _kernel(bounds, value, score, out, lse, *, blocks):
    e, d, b = (pl.program_id(axis) for axis in range(3))
    low, high = bounds[b, e], bounds[b, e + 1]
    channels = pl.ds(d * blocks.channel, blocks.channel)
    gates = channels if score.shape[2] > 1 else pl.ds(0, 1)

    def step(i, state):
        top, total, mixed = state
        token = low + i * blocks.token + jnp.arange(blocks.token)
        inside = (token < high)[:, None]
        at = jnp.minimum(token, value.shape[1] - 1)
        scores = jnp.where(inside, score[b, at, gates].astype(jnp.float32), -jnp.inf)
        # Rows outside the chunk may hold anything, even NaN.
        values = jnp.where(inside, value[b, at, channels].astype(jnp.float32), 0)
        new = jnp.maximum(top, jnp.max(scores, axis=0))
        weight, scale = jnp.exp(scores - new[None]), jnp.exp(top - new)
        mixed = mixed * scale + jnp.sum(weight * values, axis=0)
        return new, total * scale + jnp.sum(weight, axis=0), mixed

    gate = 1 if score.shape[2] == 1 else blocks.channel
    state = (
        jnp.full(gate, LOWEST, jnp.float32),
        jnp.zeros(gate, jnp.float32),
        jnp.zeros(blocks.channel, jnp.float32),
    )
    steps = jax.lax.div(high - low + blocks.token - 1, blocks.token)
    top, total, mixed = jax.lax.fori_loop(0, steps, step, state)
    total = jnp.where(total > 0, total, 1.0)
    out[b, e, channels] = (mixed / total).astype(out.dtype)
    lse[b, e, gates] = top + jnp.log(total)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _pool(value, score, chunk, entries, blocks, interpret):
    return _forward(value, score, chunk, entries, blocks, interpret)[0]


def _forward(value, score, chunk, entries, blocks, interpret):
    batch, _, channels = value.shape
    out, lse = triton.call(
        functools.partial(_kernel, blocks=blocks),
        (chunk_bounds(chunk, entries), value, score),
        (
            jax.ShapeDtypeStruct((batch, entries, channels), value.dtype),
            jax.ShapeDtypeStruct((batch, entries, score.shape[2]), jnp.float32),
        ),
        grid=(entries, channels // blocks.channel, batch),
        flops=10 * value.size,
        exponentials=2 * score.size,
        interpret=interpret,
    )
    return out, (value, score, chunk, out, lse)


def _backward(entries, blocks, interpret, kept, cotangent):
    value, score, chunk, out, lse = kept
    inside = ((chunk >= 0) & (chunk < entries))[..., None]
    at = jnp.where(inside[..., 0], chunk, 0)
    norm, centre, upstream = (
        tiles.take_rows(x, at).astype(jnp.float32) for x in (lse, out, cotangent)
    )
    weight = jnp.where(inside, jnp.exp(score.astype(jnp.float32) - norm), 0)
    pulled = weight * upstream
    by_score = jnp.where(inside, pulled * (value.astype(jnp.float32) - centre), 0)
    if score.shape[2] == 1:
        by_score = by_score.sum(-1, keepdims=True)
    return pulled.astype(value.dtype), by_score.astype(score.dtype), None


_pool.defvjp(_forward, _backward)


def ragged_pool(
    value: Float[Array, "B T D"],
    score: Float[Array, "B T #D"],
    chunk: Int[Array, "B T"],
    *,
    entries: int,
    blocks: Blocks | None = None,
    interpret: Any = False,
) -> Float[Array, "B E D"]:
    """See `api.ragged_pool`; `blocks` comes from the shapes unless given.

    Raises:
        NotImplementedError: if there is no token, or if operands are float64.
    """
    triton.check_dtypes(value=value, score=score)
    if not value.size:
        raise NotImplementedError(f"value.shape={value.shape}: there is nothing to do.")
    blocks = blocks or gpu_heuristic(value.shape[2])
    return _pool(value, score, chunk, entries, blocks, interpret)
