# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Who may read what, in every op: exact tokens nearby, entries once they are complete.

An entry is visible to the query at p iff its last token is at or before p (paper, section
"Attention") and in the same document.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

NEVER = jnp.iinfo(jnp.int32).max  # the end of a slot that holds no entry


def entry_mask(
    position: Int[Array, "*B Q"],
    segment: Int[Array, "*B Q"],
    end: Int[Array, "*B E"],
    entry_segment: Int[Array, "*B E"],
) -> Bool[Array, "*B Q E"]:
    """Whether each query may read each entry."""
    same = entry_segment[..., None, :] == segment[..., :, None]
    return (end[..., None, :] <= position[..., :, None]) & same


def token_mask(
    position: Int[Array, "*B Q"],
    since: Int[Array, "*B Q"],
    segment: Int[Array, "*B Q"],
    token: Int[Array, "*B X"],
    token_segment: Int[Array, "*B X"],
) -> Bool[Array, "*B Q X"]:
    """Whether each query reads each exact token."""
    token = token[..., None, :]
    near = (token <= position[..., :, None]) & (token >= since[..., :, None])
    return near & (token_segment[..., None, :] == segment[..., :, None])
