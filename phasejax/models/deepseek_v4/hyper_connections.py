# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Hyper-connections: several residual streams, mixed by doubly stochastic matrices.

DeepSeek-V4 (arXiv:2606.19348, section 2.2). In shapes, X is the axis of streams. All in float32.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pallas_kernels.products import product
from phasejax.models.deepseek_v4.config import DeepseekV4Config
from phasejax.models.deepseek_v4.layers import Rngs, rms_normalize
from phasejax.typing import Array, Float

Streams = Float[Array, "B T X D"]


def sinkhorn(logits: Float[Array, "*B X X"], iterations: int, eps: float) -> Float[Array, "*B X X"]:
    """Makes positive matrices doubly stochastic: rows by softmax, columns, then both in turn."""

    def columns(x: Array) -> Array:
        return x / (x.sum(-2, keepdims=True) + eps)

    def both(_, x: Array) -> Array:
        return columns(x / (x.sum(-1, keepdims=True) + eps))

    mixing = columns(jax.nn.softmax(logits, axis=-1) + eps)
    return jax.lax.fori_loop(0, iterations - 1, both, mixing)


class _Mixing(nnx.Module):
    """Logits from all streams of a token together: scale * (weight @ normalised) + base."""

    def __init__(self, config: DeepseekV4Config, sizes: tuple[int, ...], *, rngs: Rngs):
        inputs, outputs = config.streams * config.width, sum(sizes)
        weight = jax.random.normal(rngs.params(), (outputs, inputs), jnp.float32)
        self.weight = nnx.Param(weight * config.init_std)
        self.base = nnx.Param(jnp.zeros(outputs, jnp.float32))
        self.scale = nnx.Param(jnp.ones(len(sizes), jnp.float32))
        self.sizes, self.norm_eps, self.eps = sizes, config.norm_eps, config.hyper_eps

    def logits(self, streams: Streams) -> list[Float[Array, "B T A"]]:
        """One array for each of the sizes."""
        flat = rms_normalize(streams.reshape(*streams.shape[:2], -1), self.norm_eps)
        scale = jnp.repeat(
            self.scale[...], np.asarray(self.sizes), total_repeat_length=sum(self.sizes)
        )
        mixed = product("btd,ad->bta", flat, self.weight[...]) * scale[None, None]
        return jnp.split(mixed + self.base[...][None, None], np.cumsum(self.sizes)[:-1], axis=-1)

    def collapse(self, streams: Streams, logits: Float[Array, "B T X"]) -> Float[Array, "B T D"]:
        """The weighted sum of the streams that a sublayer, or the head, reads."""
        weights = jax.nn.sigmoid(logits) + self.eps
        return product("btx,btxd->btd", weights, streams.astype(jnp.float32)).astype(streams.dtype)


class HyperConnection(_Mixing):
    """How one sublayer reads the streams and writes to them."""

    def __init__(self, config: DeepseekV4Config, *, rngs: Rngs):
        streams = config.streams
        super().__init__(config, (streams, streams, streams**2), rngs=rngs)
        self.iterations = config.sinkhorn_iterations

    def __call__(
        self, streams: Streams
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T X"], Float[Array, "B T X Y"]]:
        """What the sublayer reads, the weights of its output, and the matrix of the streams."""
        read, write, mixing = self.logits(streams)
        count = streams.shape[2]
        mixing = sinkhorn(
            mixing.reshape(*mixing.shape[:2], count, count), self.iterations, self.eps
        )
        return self.collapse(streams, read), 2 * jax.nn.sigmoid(write), mixing


def merge(
    streams: Streams,
    output: Float[Array, "B T D"],
    write: Float[Array, "B T X"],
    mixing: Float[Array, "B T X Y"],
) -> Streams:
    """Streams after a sublayer: stream k is write[k] * output + sum_j mixing[j, k] stream[j]."""
    kept = product("btjk,btjd->btkd", mixing, streams.astype(jnp.float32))
    added = write[..., None] * output.astype(jnp.float32)[:, :, None]
    return (kept + added).astype(streams.dtype)


class StreamHead(_Mixing):
    """Collapses the streams for the output head."""

    def __init__(self, config: DeepseekV4Config, *, rngs: Rngs):
        super().__init__(config, (config.streams,), rngs=rngs)

    def __call__(self, streams: Streams) -> Float[Array, "B T D"]:
        return self.collapse(streams, self.logits(streams)[0])
