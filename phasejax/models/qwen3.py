# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The Qwen3 decoder (arXiv:2505.09388), with full or chunk-compressed attention."""

import jax.numpy as jnp
from flax import nnx

from phasejax.models.attention import Attention
from phasejax.models.config import ModelConfig
from phasejax.models.layers import Linear, SwiGLU, rms_norm
from phasejax.typing import Array, Float, Hidden, Int, Logits, Tokens


class Block(nnx.Module):
    """Pre-norm attention and MLP on a residual stream."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.attention_norm = rms_norm(config, config.width, rngs=rngs)
        self.attention = Attention(config, rngs=rngs)
        self.mlp_norm = rms_norm(config, config.width, rngs=rngs)
        self.mlp = SwiGLU(config, rngs=rngs)

    def __call__(
        self, hidden: Hidden, output_positions: Int[Array, "Q"] | None = None
    ) -> Float[Array, "B Q D"]:
        kept = hidden if output_positions is None else hidden[:, output_positions]
        kept = kept + self.attention(self.attention_norm(hidden), output_positions)
        return kept + self.mlp(self.mlp_norm(kept))


class Qwen3(nnx.Module):
    """Decoder-only language model.

    Args:
        config: what it is made of.
        rngs: parameter keys.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.embed = nnx.Embed(
            config.vocab_size,
            config.width,
            embedding_init=nnx.initializers.normal(config.embed_std),
            dtype=jnp.dtype(config.compute_dtype),
            param_dtype=jnp.dtype(config.param_dtype),
            rngs=rngs,
        )
        self.blocks = nnx.List([Block(config, rngs=rngs) for _ in range(config.num_layers)])
        self.norm = rms_norm(config, config.width, rngs=rngs)
        self.head = (
            None
            if config.tie_embeddings
            else Linear(config, config.width, config.vocab_size, rngs=rngs)
        )

    def __call__(
        self, tokens: Tokens, *, output_positions: Int[Array, "Q"] | None = None
    ) -> Logits:
        """Next-token logits.

        Args:
            tokens: prompts, int32.
            output_positions: positions whose logits are wanted; None means all. The last layer
                computes queries, MLP and head at these positions only.

        Returns:
            Logits in the compute dtype, [B, Q, V].
        """
        hidden = self.embed(tokens)
        last = len(self.blocks) - 1
        for index, block in enumerate(self.blocks):
            hidden = block(hidden, output_positions if index == last else None)
        hidden = self.norm(hidden)
        return self.embed.attend(hidden) if self.head is None else self.head(hidden)

    def gates(self, tokens: Tokens) -> list[dict[str, Float[Array, "B E W K C"]]]:
        """How much each offset of every window counts, by layer and branch ("key", "value").

        Raises:
            ValueError: if the model has full attention, hence no gates.
        """
        hidden, captured = self.embed(tokens), []
        for block in self.blocks:
            captured.append(block.attention.gates(block.attention_norm(hidden)))
            hidden = block(hidden)
        return captured
