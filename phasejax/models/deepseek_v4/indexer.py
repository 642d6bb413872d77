# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The lightning indexer: which entries a query reads, one choice for all heads.

DeepSeek-V4 (arXiv:2606.19348, section 2.3.1), in two levels in V4.1 (arXiv:2609.19969):

    I[p, e] = sum_h w[p, h] * ReLU(q[p, h] . k[e])

Entries that a query may not see are masked before the top-k. Equal scores, which are common as
ReLU gives zeros, go to the lower index.
"""

import dataclasses
from typing import no_type_check

import jax
import jax.numpy as jnp
from flax import nnx

from pallas_kernels.index_topk.api import index_topk
from pallas_kernels.index_topk.reference import index_scores
from phasejax.models.deepseek_v4.blocks import by_rows, rows_within_budget
from phasejax.models.deepseek_v4.compressor import WindowCompressor
from phasejax.models.deepseek_v4.config import SCHEMES, DeepseekV4Config
from phasejax.models.deepseek_v4.layers import Linear, RMSNorm, Rngs
from phasejax.models.deepseek_v4.quantization import round_index
from phasejax.models.deepseek_v4.rope import rotate
from phasejax.typing import Array, Bool, Float, Hidden, Int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
@no_type_check  # JAX rebuilds states around placeholders
class Selection:
    """What queries read of the entries.

    Attributes:
        picks: entries that each query reads, -1 where there are fewer; None means all visible.
        candidates: blocks of entries within which later layers search, -1 where there are fewer;
            None means all.
    """

    picks: Int[Array, "B Q P"] | None = None
    candidates: Int[Array, "B Q C"] | None = None


def visible_entries(position: Int[Array, "*B Q"], ratio: int) -> Int[Array, "*B Q"]:
    """How many entries a query may read: those whose last token is at or before it."""
    return (position + 1) // ratio


def choose(scores: Float[Array, "*B E"], visible: Int[Array, "*#B"], count: int) -> Array:
    """Indices of the largest scores among the first visible[...] entries, then -1.

    A zero is a zero, whatever its sign, and of equal scores the lower index comes first.
    """
    index = jnp.arange(scores.shape[-1])
    scores = jnp.where(scores == 0, 0.0, scores)
    seen = (index < visible[..., None]) & (scores > -jnp.inf)
    top, picks = jax.lax.top_k(jnp.where(seen, scores, -jnp.inf), min(count, scores.shape[-1]))
    return jnp.where(top > -jnp.inf, picks, -1)


class LatentKeys(nnx.Module):
    """Index keys from normalised entries that are not rotated (V4.1)."""

    def __init__(self, config: DeepseekV4Config, *, rngs: Rngs):
        self.key = Linear(config, config.head_dim, config.index_dim, rngs=rngs)
        self.norm = RMSNorm(config, config.index_dim)

    def __call__(self, latent: Float[Array, "B E K H"]) -> Float[Array, "B E K I"]:
        return self.norm(self.key(latent))


class Indexer(nnx.Module):
    """Scores entries for a query and chooses the best.

    Args:
        config: widths and counts.
        layer: which layer's ratio and sources.
        rngs: parameter keys.
    """

    def __init__(self, config: DeepseekV4Config, layer: int, *, rngs: Rngs):
        self.config, self.layer = config, layer
        self.ratio, self.rotary = config.ratio(layer), config.rotary(layer)
        heads, dim, index = config.index_heads, config.index_dim, SCHEMES[self.ratio].index
        self.query_up = Linear(config, config.query_rank, heads * dim, rngs=rngs)
        self.head_weights = Linear(config, config.width, heads, rngs=rngs)
        self.compressor = (
            WindowCompressor(config, self.ratio, dim, rngs=rngs) if index == "windows" else None
        )
        self.latent = (
            LatentKeys(config, rngs=rngs)
            if index == "latent" and config.makes_entries(layer)
            else None
        )

    def _rounded(self, x: Array) -> Array:
        return round_index(x) if self.config.quantized else x

    def keys(
        self, key: Float[Array, "B E K I"], position: Int[Array, "*R E"]
    ) -> Float[Array, "B E I"]:
        """Normalised keys as queries are compared with them."""
        return self._rounded(rotate(key, position, self.rotary)[:, :, 0])

    def __call__(
        self,
        hidden: Hidden,
        query_latent: Float[Array, "B T R"],
        position: Int[Array, "#B T"],
        keys: Float[Array, "B E I"],
        candidates: Int[Array, "B T C"] | None,
    ) -> Selection:
        """Selects entries for every query.

        Args:
            hidden: normalised input of the attention layer.
            query_latent: the normalised latent that its queries are made from.
            position: positions of the queries.
            keys: finished index keys of all entries.
            candidates: blocks to search within, see Selection.
        """
        config, entries = self.config, keys.shape[1]
        chooses_blocks = (
            config.candidate_source == self.layer
            and config.candidate_blocks * config.candidate_size < entries
        )
        if entries <= config.index_topk and not chooses_blocks and candidates is None:
            return Selection(None, candidates)
        heads = config.index_heads
        query = self.query_up(query_latent).reshape(*hidden.shape[:2], heads, config.index_dim)
        query = self._rounded(rotate(query, position, self.rotary))
        weight = self.head_weights(hidden).astype(jnp.float32)
        weight = weight * (config.index_dim**-0.5 * heads**-0.5)

        position = jnp.broadcast_to(position, hidden.shape[:2])
        if candidates is None and not chooses_blocks:
            end = (jnp.arange(entries) + 1) * self.ratio - 1
            operands = jax.lax.stop_gradient((query, weight, keys))  # a choice has none
            picks = index_topk(*operands, end, picks=config.index_topk, position=position)
            return Selection(picks.index)

        def select(query: Array, weight: Array, position: Array, *within: Array) -> Selection:
            scores = index_scores(query, weight, keys[:, None])
            if within:
                inside = in_blocks(within[0], entries, config.candidate_size)
                scores = jnp.where(inside, scores, -jnp.inf)
            visible = visible_entries(position, self.ratio)
            blocks = (
                choose_blocks(scores, visible, config.candidate_size, config.candidate_blocks)
                if chooses_blocks
                else None
            )
            return Selection(choose(scores, visible, config.index_topk), blocks)

        arrays = (query, weight, position, *(() if candidates is None else (candidates,)))
        rows = rows_within_budget(len(keys) * heads * entries)
        selection = by_rows(select, rows, *arrays)
        return Selection(selection.picks, selection.candidates if chooses_blocks else candidates)


def choose_blocks(
    scores: Float[Array, "*B E"], visible: Int[Array, "*#B"], size: int, count: int
) -> Int[Array, "*B C"]:
    """The best blocks of `size` neighbouring entries, -1 where there are fewer.

    A block is as good as its best visible entry; the block of the newest visible entry is always
    chosen (arXiv:2609.19969).
    """
    entries = scores.shape[-1]
    blocks = -(-entries // size)
    scores = jnp.where(jnp.arange(entries) < visible[..., None], scores, -jnp.inf)
    padding = [(0, 0)] * (scores.ndim - 1) + [(0, blocks * size - entries)]
    scores = jnp.pad(scores, padding, constant_values=-jnp.inf)
    best = scores.reshape(*scores.shape[:-1], blocks, size).max(-1)
    newest = (visible - 1)[..., None] // size
    best = jnp.where(jnp.arange(blocks) == newest, jnp.inf, best)
    return choose(best, -(-visible // size), count)


def in_blocks(blocks: Int[Array, "*B C"], entries: int, size: int) -> Bool[Array, "*B E"]:
    """Whether each entry lies in one of the blocks."""
    count = -(-entries // size)
    chosen = jnp.zeros((*blocks.shape[:-1], count), bool)
    # An index that is out of range is dropped; a negative one would count from the end.
    target = jnp.where(blocks < 0, count, blocks)
    chosen = jnp.put_along_axis(chosen, target, True, axis=-1, inplace=False, mode="drop")
    return jnp.repeat(chosen, size, axis=-1)[..., :entries]
