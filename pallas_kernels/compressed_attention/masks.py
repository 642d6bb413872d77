# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What each query of compressed attention reads, as ranges of positions."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from pallas_kernels.masks import entry_mask


class Reads(NamedTuple):
    """What each query reads, as ranges. B is the batch, or 1 where the rows of a batch agree.

    Attributes:
        position: last exact token that a query reads, its own; -1 reads nothing at all.
        since: first exact token that it reads.
        segment: its document.
        token_segment: document of each exact token.
        end: last token of each entry, inclusive, or NEVER.
        entry_segment: document of each entry.
    """

    position: Int[Array, "B Q"]
    since: Int[Array, "B Q"]
    segment: Int[Array, "B Q"]
    token_segment: Int[Array, "B T"]
    end: Int[Array, "B E"]
    entry_segment: Int[Array, "B E"]


def covered_tokens(
    position: Int[Array, "B Q"],
    segment: Int[Array, "B Q"],
    end: Int[Array, "B E"],
    entry_segment: Int[Array, "B E"],
) -> Int[Array, "B Q"]:
    """Position after the last token of the newest entry that each query may read; 0 without one.

    Everything before it is covered, as entries leave no holes. The mask of a few queries at a time.
    """

    def newest(query: tuple[Array, Array]) -> Int[Array, "B"]:
        at, seg = query
        seen = entry_mask(at[:, None], seg[:, None], end, entry_segment)[:, 0]
        return jnp.max(jnp.where(seen, end + 1, 0), axis=-1, initial=0)

    rows = max(1, 2**22 // max(end.size, 1))
    if position.shape[1] <= rows:
        return jax.vmap(newest, in_axes=1, out_axes=1)((position, segment))
    return jax.lax.map(newest, (position.T, segment.T), batch_size=rows).T


def reads(
    position: Int[Array, "B Q"],
    segment: Int[Array, "B Q"],
    token_segment: Int[Array, "B T"],
    end: Int[Array, "B E"],
    entry_segment: Int[Array, "B E"],
    *,
    window: int | None,
    tail_only: bool,
) -> Reads:
    """Turns the choice of exact tokens into ranges; see `api.compressed_attention`."""
    since = jnp.zeros_like(position) if window is None else jnp.maximum(position - window + 1, 0)
    if tail_only:
        since = jnp.maximum(since, covered_tokens(position, segment, end, entry_segment))
    return Reads(position, since, segment, token_segment, end, entry_segment)
