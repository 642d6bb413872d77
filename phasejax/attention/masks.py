# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Who may read what: exact tokens nearby, compressed entries once they are complete.

An entry is visible to the query at p iff its last token is at or before p (paper, section
"Attention"). Every mask of the project is built here, from positions alone.
"""

import dataclasses

import jax.numpy as jnp

from phasejax.typing import Array, Bool, Int


@dataclasses.dataclass(frozen=True)
class LocalSpan:
    """Which exact (uncompressed) tokens a query reads.

    Attributes:
        size: the most recent tokens, the query's own included; None means all of them.
        tail_only: keep only those that no visible entry covers: the current incomplete window.
    """

    size: int | None
    tail_only: bool = False

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise ValueError(
                f"size={self.size}: a query reads at least its own token, so size >= 1."
            )


def entry_mask(
    query: Int[Array, "... Q"], end: Int[Array, "E"], valid: Bool[Array, "E"]
) -> Bool[Array, "... Q E"]:
    """Whether each query position may read each entry."""
    return (end <= query[..., None]) & valid


def covered_tokens(
    query: Int[Array, "... Q"], end: Int[Array, "E"], valid: Bool[Array, "E"]
) -> Int[Array, "... Q"]:
    """How many leading tokens the visible entries cover; windows leave no holes as W >= S."""
    visible = entry_mask(query, end, valid)
    return jnp.max(jnp.where(visible, end + 1, 0), axis=-1, initial=0)


def local_mask(
    query: Int[Array, "... Q"],
    token: Int[Array, "... T"],
    span: LocalSpan,
    end: Int[Array, "E"],
    valid: Bool[Array, "E"],
) -> Bool[Array, "... Q T"]:
    """Whether each query position may read each exact token; token < 0 marks padding."""
    query_, token_ = query[..., :, None], token[..., None, :]
    mask = (token_ <= query_) & (token_ >= 0)
    if span.size is not None:
        mask &= token_ > query_ - span.size
    if span.tail_only:
        mask &= token_ >= covered_tokens(query, end, valid)[..., None]
    return mask
