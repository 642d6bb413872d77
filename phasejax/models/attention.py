# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The attention layer: projections, norms and rotation around compressed attention."""

import jax.numpy as jnp
from flax import nnx

from pallas_kernels.compressed_attention.api import compressed_attention
from phasejax.attention.rope import rotate
from phasejax.compress.base import Compressor, Entries
from phasejax.compress.static import StaticCompressor
from phasejax.models.config import ModelConfig
from phasejax.models.layers import Linear, project_together, rms_norm, weight_init
from phasejax.typing import Array, Float, Hidden, Int


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

    def _finish(self, x: Array, norm: nnx.RMSNorm | None, position: Int[Array, "X"]) -> Array:
        """Normalises and rotates queries or keys; exact and compressed keys share the norm."""
        if norm is not None:
            x = norm(x)
        return rotate(x, position, theta=self.config.rope_theta, rotary_dim=self.config.rotary_dim)

    def _no_entries(self, batch: int) -> Entries:
        shape = (batch, 0, self.config.num_kv_heads, self.config.head_dim)
        nothing, index = (
            jnp.zeros(shape, jnp.dtype(self.config.compute_dtype)),
            jnp.zeros(0, jnp.int32),
        )
        return Entries(nothing, nothing, index, index, index, index.astype(bool))

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
        config = self.config
        batch, tokens, _ = hidden.shape
        position = jnp.arange(tokens)
        wanted = position if output_positions is None else output_positions
        key_value = [self.key] if self.value is None else [self.key, self.value]
        if output_positions is None:
            query, *exact = project_together(hidden, self.query, *key_value)
        else:
            query = self.query(hidden[:, output_positions])
            exact = project_together(hidden, *key_value)
        query = query.reshape(batch, -1, config.num_heads, config.head_dim)
        exact = [x.reshape(batch, tokens, config.num_kv_heads, config.head_dim) for x in exact]
        query = self._finish(query, self.query_norm, wanted)
        key = self._finish(exact[0], self.key_norm, position)
        entries = self._no_entries(batch) if self.compressor is None else self.compressor(hidden)
        entry_key = self._finish(entries.key, self.key_norm, entries.position)
        mixed = compressed_attention(
            query,
            key,
            None if self.value is None else exact[1],
            entry_key,
            None if self.value is None else entries.value,
            entries.end,
            valid=entries.valid,
            window=config.span.size,
            tail_only=config.span.tail_only,
            query_position=output_positions,
            sink=None if self.sink is None else self.sink[...],
        )
        return self.output(mixed.reshape(batch, -1, config.num_heads * config.head_dim))

    def gates(self, hidden: Hidden) -> dict[str, Float[Array, "B E W K C"]]:
        """Weights of the offsets by branch, from the normalised residual stream.

        Raises:
            ValueError: if attention is full.
        """
        if self.compressor is None:
            raise ValueError("attention='full' has no gates: capture those of a compressed model.")
        return self.compressor.gates(hidden)
