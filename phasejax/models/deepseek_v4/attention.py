# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The attention layer of DeepSeek-V4 (arXiv:2606.19348, section 2.3) and of V4.1.

Queries come from a low-rank latent; one vector a token is key and value of all heads. Layers that
make no entries, or select none, of their own read those of the latest layer that does (V4.1).
"""

import dataclasses
from typing import no_type_check

import jax
import jax.numpy as jnp
from flax import nnx

from pallas_kernels.compressed_attention.api import compressed_attention
from pallas_kernels.products import product
from pallas_kernels.selected_attention.api import selected_attention
from phasejax.compress.base import Entries
from phasejax.compress.history import extend, recall, rewind
from phasejax.models.deepseek_v4.compressor import WindowCompressor, WindowState
from phasejax.models.deepseek_v4.config import DeepseekV4Config
from phasejax.models.deepseek_v4.indexer import Indexer, Selection
from phasejax.models.deepseek_v4.layers import Linear, RMSNorm, Rngs, normal, rms_normalize
from phasejax.models.deepseek_v4.quantization import round_entry
from phasejax.models.deepseek_v4.rope import rotate
from phasejax.typing import Array, Float, Hidden, Int, Queries


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
@no_type_check  # JAX rebuilds states around placeholders
class Shared:
    """What layers hand to the layers after them.

    Attributes:
        entries: finished entries of the latest source.
        keys: their finished index keys, or None.
        selection: what the latest indexer selected.
    """

    entries: Float[Array, "B E H"] | None = None
    keys: Float[Array, "B E I"] | None = None
    selection: Selection = Selection()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
@no_type_check  # JAX rebuilds states around placeholders
class Compressed:
    """What streams have been compressed to; all None for a sequence that is seen at once.

    Attributes:
        windows: state of the compressor.
        index_windows: state of the indexer's compressor, if it has one.
        entries: finished entries; a slot past a stream's last entry may hold anything.
        keys: finished index keys, likewise.
    """

    windows: WindowState | None = None
    index_windows: WindowState | None = None
    entries: Float[Array, "B E H"] | None = None
    keys: Float[Array, "B E I"] | None = None

    def rewind(self, count: Int[Array, "B"]) -> "Compressed":
        """The state before the last count[b] tokens; entries made of them are out of sight."""
        windows, index_windows = (
            None if state is None else state.rewind(count)
            for state in (self.windows, self.index_windows)
        )
        return Compressed(windows, index_windows, self.entries, self.keys)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
@no_type_check  # JAX rebuilds states around placeholders
class LayerState:
    """What a layer remembers of its streams.

    Attributes:
        exact: finished vectors of the most recent tokens.
        compressed: what the tokens have been compressed to.
    """

    exact: Float[Array, "B L H"]
    compressed: Compressed

    def rewind(self, count: Int[Array, "B"]) -> "LayerState":
        """The state before the last count[b] tokens of every stream."""
        return LayerState(rewind(self.exact, count), self.compressed.rewind(count))


def _make(
    compressor: WindowCompressor, hidden: Hidden, state: WindowState | None, count: Array | None
) -> tuple[WindowState | None, Entries]:
    """Entries of a whole sequence, or those that the next tokens of a stream close."""
    return (None, compressor(hidden)) if state is None else compressor.append(state, hidden, count)


def _keep(
    stored: Float[Array, "B E H"] | None, rows: Float[Array, "B E2 H"], made: Entries, ratio: int
) -> Float[Array, "B E3 H"]:
    """The entries so far: those of a whole sequence, or the stored ones with the valid new ones."""
    if stored is None:
        return rows
    # An index that is out of range is dropped; a negative one would count from the end.
    place = jnp.where(made.valid, made.position // ratio, stored.shape[1])
    streams = jnp.arange(stored.shape[0])[:, None]
    return stored.at[streams, place].set(rows.astype(stored.dtype), mode="drop")


class Attention(nnx.Module):
    """Attention of one layer; its ratio decides what it is made of.

    Args:
        config: of the decoder.
        layer: which layer.
        rngs: parameter keys.
    """

    def __init__(self, config: DeepseekV4Config, layer: int, *, rngs: Rngs):
        self.config, self.ratio = config, config.ratio(layer)
        self.rotary = config.rotary(layer)
        heads, dim, rank = config.num_heads, config.head_dim, config.query_rank
        groups, wide = config.output_groups, config.output_groups * config.output_rank
        self.query_down = Linear(config, config.width, rank, rngs=rngs)
        self.query_norm = RMSNorm(config, rank)
        self.query_up = Linear(config, rank, heads * dim, rngs=rngs)
        self.kv = Linear(config, config.width, dim, rngs=rngs)
        self.kv_norm = RMSNorm(config, dim)
        self.output_down = normal(config, (groups, config.output_rank, heads * dim // groups), rngs)
        self.output_up = Linear(config, wide, config.width, rngs=rngs)
        self.sink = nnx.Param(jnp.zeros(heads, jnp.float32))
        self.compressor = (
            WindowCompressor(config, self.ratio, dim, rngs=rngs)
            if config.makes_entries(layer)
            else None
        )
        self.indexer = Indexer(config, layer, rngs=rngs) if config.selects(layer) else None

    def _rounded(self, x: Array) -> Array:
        return round_entry(x, self.config.rotary_dim) if self.config.quantized else x

    def _compress(
        self, hidden: Hidden, shared: Shared, stored: Compressed, count: Int[Array, "B"] | None
    ) -> tuple[Shared, Compressed]:
        """Entries and index keys up to the last of these tokens, and what to store of them."""
        if self.compressor is None:
            return shared, stored
        windows, made = _make(self.compressor, hidden, stored.windows, count)
        latent = self.compressor.norm(made.key)
        rows = self._rounded(rotate(latent, made.position, self.rotary)[:, :, 0])
        entries = _keep(stored.entries, rows, made, self.ratio)
        index_windows = keys = None
        if self.indexer is not None:
            index = self.indexer.compressor
            if self.indexer.latent is not None:
                latent = self.indexer.latent(latent)
            elif index is not None:
                index_windows, made = _make(index, hidden, stored.index_windows, count)
                latent = index.norm(made.key)
            rows = self.indexer.keys(latent, made.position)
            keys = _keep(stored.keys, rows, made, self.ratio)
        return Shared(entries, keys), Compressed(windows, index_windows, entries, keys)

    def _read(
        self,
        query: Queries,
        exact: Float[Array, "B X H"],
        shared: Shared,
        start: Int[Array, "B"] | None,
    ) -> Queries:
        """One softmax over the exact tokens nearby, the entries that are read, and the sink.

        Args:
            query: finished queries of consecutive tokens.
            exact: finished vectors of these tokens, and before them, in a stream, of those that the
                first query reads (any values where there are none).
            shared: entries, and which of them are read.
            start: position of the first query of each stream; None for whole sequences.
        """
        window, near = self.config.local_window, exact[:, :, None]
        entries, picks = shared.entries, shared.selection.picks
        if self.ratio == 0 or entries is None:
            entries, picks = exact[:, :0], None
        reads = {"window": window, "sink": self.sink[...]}
        operands = query, near, None, entries[:, :, None], None
        if picks is not None:
            return selected_attention(*operands, picks, position=start, **reads)
        end = self.ratio * (jnp.arange(entries.shape[1]) + 1) - 1
        if start is None:
            return compressed_attention(*operands, end, **reads)
        position = start[:, None] + jnp.arange(query.shape[1])
        return compressed_attention(
            *operands, end, query_position=position, first=start - (window - 1), **reads
        )

    def __call__(
        self,
        hidden: Hidden,
        position: Int[Array, "#B T"],
        shared: Shared,
        state: LayerState | None = None,
        count: Int[Array, "B"] | None = None,
    ) -> tuple[Hidden, Shared, LayerState | None]:
        """Attends from every token to those before it.

        Args:
            hidden: normalised input, of a whole sequence or of the next tokens of streams.
            position: positions of the tokens, consecutive.
            shared: what earlier layers hand on.
            state: what the layer remembers of streams; None for a whole sequence.
            count: how many of the next tokens are real, the first ones; needed with a state.

        Returns:
            The layer's contribution to the residual, what it hands on, and its next state.
        """
        config = self.config
        batch, tokens, _ = hidden.shape
        latent = self.query_norm(self.query_down(hidden))
        query = self.query_up(latent).reshape(batch, tokens, config.num_heads, config.head_dim)
        if config.query_head_norm:
            query = rms_normalize(query, config.norm_eps).astype(query.dtype)
        query = rotate(query, position, self.rotary)
        exact = self.kv_norm(self.kv(hidden))[:, :, None]
        exact = self._rounded(rotate(exact, position, self.rotary)[:, :, 0])
        start = None
        if state is None or count is None:
            shared, _ = self._compress(hidden, shared, Compressed(), None)
        else:
            start, recent = position[:, 0], state.exact
            shared, stored = self._compress(hidden, shared, state.compressed, count)
            state = LayerState(extend(recent, exact, count), stored)
            exact = recall(recent, exact, config.local_window - 1)
        selection = shared.selection
        if self.indexer is not None and shared.keys is not None:
            within = selection.candidates
            selection = self.indexer(hidden, latent, position, shared.keys, within)
            shared = dataclasses.replace(shared, selection=selection)
        mixed = self._read(query, exact, shared, start)
        mixed = rotate(mixed, position, self.rotary, inverse=True)
        grouped = mixed.reshape(batch, tokens, config.output_groups, -1)
        down = self.output_down[...].astype(mixed.dtype)
        output = product("btgi,goi->btgo", grouped, down).astype(mixed.dtype)
        return self.output_up(output.reshape(batch, tokens, -1)), shared, state

    def init_state(self, batch: int, capacity: int, spare: int) -> LayerState:
        """State of streams that have seen no token.

        Args:
            batch: B.
            capacity: tokens that a stream may reach.
            spare: tokens that can be taken back.
        """
        config = self.config
        dtype = jnp.dtype(config.compute_dtype)
        exact = jnp.zeros((batch, config.local_window - 1 + spare, config.head_dim), dtype)
        if self.compressor is None:
            return LayerState(exact, Compressed())
        entries = jnp.zeros((batch, self.compressor.max_entries(capacity), config.head_dim), dtype)
        windows = self.compressor.init_state(batch, spare)
        if self.indexer is None:
            return LayerState(exact, Compressed(windows, None, entries))
        keys = jnp.zeros((*entries.shape[:2], config.index_dim), dtype)
        index = self.indexer.compressor
        index_windows = None if index is None else index.init_state(batch, spare)
        return LayerState(exact, Compressed(windows, index_windows, entries, keys))
