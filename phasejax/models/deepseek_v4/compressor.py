# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The compressors of DeepSeek-V4 and V4.1: a softmax over a window's slots for every channel.

DeepSeek-V4 (arXiv:2606.19348, sections 2.3.1 and 2.3.2), V4.1 (arXiv:2609.19969). Each token gives

    value[t] = Wkv x[t]        score[t] = Wgate x[t] + bias[t mod r]

and entry w of ratio r pools the tokens of its window by a softmax over their scores, channel by
channel. With overlap (ratio 4) there are two lanes of channels: a token's second lane goes into its
own window's entry and its first lane into the next entry, so an entry pools 2 r slots at once.
Storage order is [lane for the next window | lane for the own window], in the biases too. The first
entry's missing slots have weight 0 exactly. Tokens past the last full window make no entry.
"""

import dataclasses
import math
from typing import no_type_check

import jax
import jax.numpy as jnp
from flax import nnx

from pallas_kernels.chunk_pool.api import chunk_pool
from phasejax.compress.base import Compressor, Entries
from phasejax.compress.history import extend, recall, rewind
from phasejax.models.deepseek_v4.config import SCHEMES, DeepseekV4Config
from phasejax.models.deepseek_v4.layers import Linear, RMSNorm, Rngs
from phasejax.typing import Array, Bool, Float, Hidden, Int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
@no_type_check  # JAX rebuilds states around placeholders
class WindowState:
    """Projections of the most recent tokens, without biases, and how many tokens there were.

    A slot's bias is known only where its window is, so it is added when windows are pooled.
    """

    rows: Float[Array, "B L F"]
    length: Int[Array, "B"]

    def rewind(self, count: Int[Array, "B"]) -> "WindowState":
        """The state before the last count[b] tokens of every stream."""
        return WindowState(rewind(self.rows, count), self.length - count)


class WindowCompressor(Compressor):
    """Pools windows of `ratio` tokens, with the previous window's other lane if they overlap.

    `norm` is for the entries: they are normalised, then rotated, by the layer that reads them.

    Args:
        config: widths, dtypes and epsilon.
        ratio: r, tokens an entry; it decides what windows are made of.
        channels: of an entry.
        rngs: parameter keys.
    """

    def __init__(
        self,
        config: DeepseekV4Config,
        ratio: int,
        channels: int,
        *,
        rngs: Rngs,
    ):
        self.ratio, self.channels = ratio, channels
        scheme = SCHEMES[ratio]
        self.lanes = 2 if scheme.overlap else 1
        self.window = self.lanes * ratio
        self.dtype = jnp.dtype(config.compute_dtype)
        wide = self.lanes * channels
        exact = scheme.gated  # an ungated entry is a plain projection
        self.value = Linear(config, config.width, wide, exact=exact, rngs=rngs)
        self.gate = (
            Linear(config, config.width, wide, exact=True, rngs=rngs) if scheme.gated else None
        )
        self.bias = nnx.Param(jnp.zeros((ratio, wide), jnp.float32)) if scheme.biased else None
        self.norm = RMSNorm(config, channels)

    def _project(self, hidden: Hidden) -> Float[Array, "B T F"]:
        """Values and scores of tokens: F is parts x lanes x channels."""
        value = self.value(hidden)
        return value if self.gate is None else jnp.concatenate([value, self.gate(hidden)], -1)

    @property
    def _parts(self) -> tuple[int, int, int]:
        return (1 if self.gate is None else 2), self.lanes, self.channels

    def _chunks(self, hidden: Hidden) -> Float[Array, "B E S P L C"]:
        """Parts and lanes of all full chunks of a sequence that starts at position 0."""
        batch, tokens, _ = hidden.shape
        entries = tokens // self.ratio
        rows = self._project(hidden)[:, : entries * self.ratio]
        return rows.reshape(batch, entries, self.ratio, *self._parts)

    def _first_slot(self, index: Int[Array, "*R E"]) -> Int[Array, "*R E"]:
        """Token of an entry's first slot, negative where the prompt has none."""
        return index * self.ratio - (self.window - self.ratio)

    def _weights(
        self, scores: Float[Array, "B E W C"], index: Int[Array, "*R E"]
    ) -> Float[Array, "B E W C"]:
        """Weights of the slots, float32; exactly 0 for slots before the prompt."""
        scores = scores.astype(jnp.float32)
        if self.bias is not None:  # row t mod r of the lane that a slot reads
            lanes = jnp.split(self.bias[...], self.lanes, axis=-1)
            scores = scores + jnp.concatenate(lanes, axis=0)[None, None]
        real = self._first_slot(index)[..., None] + jnp.arange(self.window) >= 0
        real = jnp.broadcast_to(real, scores.shape[:3])[..., None]
        return jax.nn.softmax(jnp.where(real, scores, -jnp.inf), axis=2)

    def _entries(
        self,
        pooled: Float[Array, "B E C"],
        index: Int[Array, "*R E"],
        valid: Bool[Array, "*R E"],
    ) -> Entries:
        position = index * self.ratio  # the first token of an entry's own window
        return Entries(
            key=pooled.astype(self.dtype)[:, :, None],
            value=None,
            start=jnp.maximum(self._first_slot(index), 0),
            end=position + (self.ratio - 1),
            position=position,
            valid=valid,
        )

    def __call__(self, hidden: Hidden) -> Entries:
        chunks = self._chunks(hidden)
        pooled = chunks[:, :, -1, 0, -1]
        if self.gate is not None:
            places = (self.ratio, self.lanes, self.channels)
            bias = None if self.bias is None else self.bias[...].reshape(places)
            pooled = chunk_pool(chunks[..., 0, :, :], chunks[..., 1, :, :], bias)
        index = jnp.arange(chunks.shape[1], dtype=jnp.int32)
        return self._entries(pooled, index, jnp.ones(index.shape, bool))

    def gates(self, hidden: Hidden) -> dict[str, Float[Array, "B E W K C"]]:
        """Weights of the slots; an ungated compressor weighs its one token with 1."""
        if self.gate is None:
            return {"key": jnp.ones((*hidden.shape[:2], 1, 1, 1), jnp.float32)}
        score = self._chunks(hidden)[..., 1, :, :]
        entries, pad = score.shape[1], ((0, 0), (1, 0), (0, 0), (0, 0))
        *earlier, own = (score[..., lane, :] for lane in range(self.lanes))
        slots = [*(jnp.pad(lane, pad)[:, :entries] for lane in earlier), own]
        weights = self._weights(jnp.concatenate(slots, axis=2), jnp.arange(entries))
        return {"key": weights[:, :, :, None]}

    def max_entries(self, tokens: int) -> int:
        return tokens // self.ratio

    def init_state(self, batch: int, spare: int = 0) -> WindowState:
        shape = (batch, self.window - 1 + spare, math.prod(self._parts))
        return WindowState(jnp.zeros(shape, self.value.dtype), jnp.zeros(batch, jnp.int32))

    def append(
        self, state: WindowState, hidden: Hidden, count: Int[Array, "B"] | None = None
    ) -> tuple[WindowState, Entries]:
        batch, new, _ = hidden.shape
        count = jnp.full(batch, new, jnp.int32) if count is None else count
        rows, before = self._project(hidden), self.window - 1
        index = jnp.arange(-(-new // self.ratio), dtype=jnp.int32)
        index = index + (state.length // self.ratio)[:, None]
        valid = (index + 1) * self.ratio <= (state.length + count)[:, None]
        # Windows are read before the state moves on: the new tokens may push out what they need.
        seen = recall(state.rows, rows, before)
        row = self._first_slot(index)[..., None] + jnp.arange(self.window)
        row = jnp.clip(row - (state.length - before)[:, None, None], 0, before + new - 1)
        slots = jnp.take_along_axis(seen[:, None], row[..., None], axis=2)
        slots = slots.reshape(*row.shape, *self._parts)
        lanes = [
            part[..., lane, :] for lane, part in enumerate(jnp.split(slots, self.lanes, axis=2))
        ]
        slots = jnp.concatenate(lanes, axis=2)
        pooled = slots[:, :, -1, 0]
        if self.gate is not None:
            weights = self._weights(slots[..., 1, :], index)
            pooled = jnp.sum(weights * slots[..., 0, :], axis=2)
        entries = self._entries(pooled, index, valid)
        return WindowState(extend(state.rows, rows, count), state.length + count), entries
