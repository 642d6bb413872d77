# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The attention layer: projections, norms and rotation around compressed attention."""

import dataclasses
from typing import Any, no_type_check

import jax
import jax.numpy as jnp
from flax import nnx

from pallas_kernels.compressed_attention.api import compressed_attention
from phasejax.attention.rope import rotate
from phasejax.compress.base import Compressor, StreamState
from phasejax.compress.history import extend, recall, rewind
from phasejax.compress.static import StaticCompressor
from phasejax.models.config import ModelConfig
from phasejax.models.layers import Linear, project_together, rms_norm, weight_init
from phasejax.models.store import Store, empty_store
from phasejax.typing import Array, Float, Hidden, Int, LocalKeys, Queries


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
@no_type_check  # JAX rebuilds states around placeholders
class AttentionState:
    """What a layer remembers of its streams.

    Attributes:
        near: finished keys, and values unless tied, of the most recent tokens.
        far: entries, or with full attention all tokens.
        windows: state of the compressor, if there is one.
    """

    near: tuple[Float[Array, "B L K H"], ...]
    far: Store
    windows: StreamState | None

    def rewind(self, count: Int[Array, "B"]) -> "AttentionState":
        """The state before the last count[b] tokens; entries made of them go with the next step."""
        near = tuple(rewind(x, count) for x in self.near)
        windows = None if self.windows is None else self.windows.rewind(count)
        return AttentionState(near, self.far, windows)


class Attention(nnx.Module):
    """Grouped-query attention over exact tokens and, if configured, compressed entries."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.config = config
        heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.query = Linear(config, config.width, heads * dim, rngs=rngs)
        self.key = Linear(config, config.width, kv_heads * dim, rngs=rngs)
        self.value = (
            None if config.tie_kv else Linear(config, config.width, kv_heads * dim, rngs=rngs)
        )
        self.output = Linear(config, heads * dim, config.width, rngs=rngs)
        self.query_norm = rms_norm(config, dim, rngs=rngs) if config.qk_norm else None
        self.key_norm = rms_norm(config, dim, rngs=rngs) if config.qk_norm else None
        self.sink = (
            nnx.Param(jnp.zeros(heads, jnp.dtype(config.param_dtype))) if config.sink else None
        )
        self.compressor = self._build_compressor(rngs) if config.attention == "compressed" else None

    def _build_compressor(self, rngs: nnx.Rngs) -> Compressor:
        config = self.config
        return StaticCompressor(
            config.geometry,
            config.width,
            config.num_kv_heads,
            config.head_dim,
            gate=config.gate,
            gate_bias=config.gate_bias,
            tie_kv=config.tie_kv,
            post_norm=config.post_norm,
            norm_eps=config.norm_eps,
            kernel_init=weight_init(config, config.width),
            dtype=jnp.dtype(config.compute_dtype),
            param_dtype=jnp.dtype(config.param_dtype),
            rngs=rngs,
        )

    def _finish(self, x: Array, norm: nnx.RMSNorm | None, position: Int[Array, "*R X"]) -> Array:
        """Normalises and rotates queries or keys; exact and compressed keys share the norm."""
        if norm is not None:
            x = norm(x)
        return rotate(x, position, theta=self.config.rope_theta, rotary_dim=self.config.rotary_dim)

    def _project(
        self, hidden: Hidden, wanted: Int[Array, "Q"] | None, position: Int[Array, "*R T"]
    ) -> tuple[Queries, LocalKeys, LocalKeys | None]:
        """Finished queries, of the wanted tokens only, finished keys, and values unless tied."""
        config = self.config
        key_value = [self.key] if self.value is None else [self.key, self.value]
        if wanted is None:
            query, *exact = project_together(hidden, self.query, *key_value)
        else:
            query = self.query(hidden[:, wanted])
            exact = project_together(hidden, *key_value)
        query = query.reshape(*query.shape[:2], config.num_heads, config.head_dim)
        exact = [x.reshape(*x.shape[:2], config.num_kv_heads, config.head_dim) for x in exact]
        query = self._finish(query, self.query_norm, position if wanted is None else wanted)
        key = self._finish(exact[0], self.key_norm, position)
        return query, key, None if self.value is None else exact[1]

    def _mix(self, query: Queries, *operands: Any, **reads: Any) -> Float[Array, "B Q D"]:
        """What the queries read, projected; see the op for its operands."""
        sink = None if self.sink is None else self.sink[...]
        span = self.config.span
        mixed = compressed_attention(
            query, *operands, window=span.size, tail_only=span.tail_only, sink=sink, **reads
        )
        return self.output(mixed.reshape(*query.shape[:2], -1))

    def __call__(
        self, hidden: Hidden, output_positions: Int[Array, "Q"] | None = None
    ) -> Float[Array, "B Q D"]:
        """Attends from every position, or only from output_positions.

        Args:
            hidden: normalised residual stream of the whole prompt.
            output_positions: positions whose output is wanted; None means all.

        Returns:
            The layer's contribution to the residual stream, [B, Q, D].
        """
        position = jnp.arange(hidden.shape[1])
        query, key, value = self._project(hidden, output_positions, position)
        if self.compressor is None:
            none = [None if x is None else x[:, :0] for x in (key, value)]
            end = jnp.zeros(0, jnp.int32)
            return self._mix(query, key, value, *none, end, query_position=output_positions)
        entries = self.compressor(hidden)
        return self._mix(
            query,
            key,
            value,
            self._finish(entries.key, self.key_norm, entries.position),
            entries.value,
            entries.end,
            valid=entries.valid,
            query_position=output_positions,
        )

    def extend(
        self,
        hidden: Hidden,
        position: Int[Array, "B T"],
        state: AttentionState,
        count: Int[Array, "B"],
    ) -> tuple[Hidden, AttentionState]:
        """Attends from the next tokens of streams; equal to one call over all of their tokens.

        Args:
            hidden: normalised residual stream of the next tokens.
            position: their positions, consecutive in every row.
            state: what the layer remembers of the streams.
            count: how many of the next tokens are real, the first ones.

        Returns:
            The layer's contribution to the residual stream, and its next state.
        """
        query, key, value = self._project(hidden, None, position)
        exact = (key,) if value is None else (key, value)
        length = position[:, 0]
        if self.compressor is None:  # every token is kept, as an entry of its own
            real = jnp.arange(hidden.shape[1]) < count[:, None]
            near, windows = tuple(x[:, :0] for x in exact), None
            far = state.far.extend(key, value, position, real, length)
        else:
            near = tuple(
                recall(old, new, self._reach) for old, new in zip(state.near, exact, strict=True)
            )
            windows, made = self.compressor.append(state.windows, hidden, count)
            made_key = self._finish(made.key, self.key_norm, made.position)
            far = state.far.extend(made_key, made.value, made.end, made.valid, length)
        output = self._mix(
            query,
            near[0],
            None if value is None else near[1],
            far.key,
            far.value,
            far.end,
            query_position=position,
            first=length - self._reach,
        )
        near = tuple(extend(old, new, count) for old, new in zip(state.near, exact, strict=True))
        return output, AttentionState(near, far, windows)

    @property
    def _reach(self) -> int:
        """Exact tokens before a query that it may read; the others are entries."""
        size = self.config.span.size
        return 0 if size is None else size - 1

    def init_state(self, batch: int, capacity: int, spare: int) -> AttentionState:
        """State of streams that have seen no token.

        Args:
            batch: B.
            capacity: tokens that a stream may reach.
            spare: tokens that can be taken back.
        """
        config, compressor = self.config, self.compressor
        dtype, tied = jnp.dtype(config.compute_dtype), self.value is None
        slots = capacity if compressor is None else compressor.max_entries(capacity)
        recent = 0 if compressor is None else self._reach + spare
        head = (config.num_kv_heads, config.head_dim)
        near = tuple(jnp.zeros((batch, recent, *head), dtype) for _ in range(1 if tied else 2))
        far = empty_store((batch, slots, *head), dtype, tied=tied)
        windows = None if compressor is None else compressor.init_state(batch, spare)
        return AttentionState(near, far, windows)

    def gates(self, hidden: Hidden) -> dict[str, Float[Array, "B E W K C"]]:
        """Weights of the offsets by branch, from the normalised residual stream.

        Raises:
            ValueError: if attention is full.
        """
        if self.compressor is None:
            raise ValueError("attention='full' has no gates: capture those of a compressed model.")
        return self.compressor.gates(hidden)
