# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The Qwen3 decoder (arXiv:2505.09388), with full or chunk-compressed attention."""

import jax.numpy as jnp
from flax import nnx

from phasejax.models.attention import Attention, AttentionState
from phasejax.models.cache import Cache
from phasejax.models.config import ModelConfig
from phasejax.models.decoder import Decoder
from phasejax.models.inputs import Padding
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

    def extend(
        self,
        hidden: Hidden,
        position: Int[Array, "B T"],
        state: AttentionState,
        count: Int[Array, "B"],
    ) -> tuple[Hidden, AttentionState]:
        """The block over the next tokens of streams, see Attention."""
        added, state = self.attention.extend(self.attention_norm(hidden), position, state, count)
        hidden = hidden + added
        return hidden + self.mlp(self.mlp_norm(hidden)), state


class Qwen3(Decoder):
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
        self,
        tokens: Tokens,
        *,
        output_positions: Int[Array, "Q"] | None = None,
        cache: Cache | None = None,
        lengths: Int[Array, "..."] | None = None,
        padding: Padding = "right",
    ) -> Logits | tuple[Logits, Cache]:
        """Next-token logits, see Decoder, in the compute dtype.

        Args:
            tokens: whole prompts, or with a cache the next tokens of its streams, int32.
            output_positions: positions of whole prompts whose logits are wanted; None means all.
                The last layer computes queries, MLP and head at these positions only.
            cache: what the streams have seen.
            lengths: real tokens of each row; None means all.
            padding: the side on which rows are filled up.

        Returns:
            Logits [B, Q, V], and with a cache the one after these tokens.

        Raises:
            ValueError: if the input does not fit, or if output_positions come with a cache or with
                lengths.
        """
        if output_positions is None:
            return super().__call__(tokens, cache=cache, lengths=lengths, padding=padding)
        if cache is not None or lengths is not None:
            raise ValueError(
                f"output_positions of shape {output_positions.shape} come with a cache or lengths,"
                " but they count from the start of whole prompts: leave one of them out."
            )
        self.check_input(tokens, padding=padding)
        return self._logits(self._hidden(tokens, output_positions))

    def _hidden(
        self, tokens: Tokens, output_positions: Int[Array, "Q"] | None
    ) -> Float[Array, "B Q D"]:
        hidden = self.embed(tokens)
        last = len(self.blocks) - 1
        for index, block in enumerate(self.blocks):
            hidden = block(hidden, output_positions if index == last else None)
        return hidden

    def _logits(self, hidden: Float[Array, "B Q D"]) -> Logits:
        hidden = self.norm(hidden)
        return self.embed.attend(hidden) if self.head is None else self.head(hidden)

    def forward(
        self,
        tokens: Tokens,
        position: Int[Array, "#B T"],
        states: list[AttentionState] | None,
        count: Int[Array, "B"],
    ) -> tuple[Logits, list[AttentionState]]:
        if states is None:
            return self._logits(self._hidden(tokens, None)), []
        hidden, after = self.embed(tokens), []
        for block, state in zip(self.blocks, states, strict=True):
            hidden, state = block.extend(hidden, position, state, count)
            after.append(state)
        return self._logits(hidden), after

    def init_states(self, batch: int, capacity: int, spare: int) -> list[AttentionState]:
        return [block.attention.init_state(batch, capacity, spare) for block in self.blocks]

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
