# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The lightning indexer: which entries each query reads."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels import dispatch
from pallas_kernels.dispatch import Implementation, check
from pallas_kernels.index_topk.reference import Picks
from pallas_kernels.masks import NEVER

IMPLEMENTATIONS = ("pallas_tpu", "pallas_gpu", "xla_blocked", "reference")


def index_topk(
    query: Float[Array, "B Q N H"],
    weight: Float[Array, "B Q N"],
    key: Float[Array, "B E H"],
    end: Int[Array, "*#B E"],
    *,
    picks: int,
    position: Int[Array, "*#B Q"] | None = None,
    valid: Bool[Array, "*#B E"] | None = None,
    segment: Int[Array, "B Q"] | None = None,
    entry_segment: Int[Array, "B E"] | None = None,
    implementation: Implementation = None,
) -> Picks:
    """The entries with the highest scores among those that each query may see.

        I[p, e] = sum_n weight[p, n] * ReLU(query[p, n] . key[e])

    The scores have a gradient; the choice has none (DeepSeek-V4, arXiv:2606.19348).

    Args:
        query: finished index queries.
        weight: weights of the heads, of any sign.
        key: finished index keys of the entries.
        end: last token of each entry, [E] or [B, E]; the query at p sees it when end <= p.
        picks: how many entries a query gets, P.
        position: position of each query, [Q] or [B, Q]; 0 .. Q - 1 if None.
        valid: whether each slot holds an entry, [E] or [B, E]; all of them if None.
        segment: document of each query in packed rows; needs `entry_segment`.
        entry_segment: document of each entry; needs `segment`.
        implementation: one of IMPLEMENTATIONS, several to try in order, or None for the best here.

    Returns:
        Indices and scores, float32 or wider, best first, equal scores in the order of the index.
        Where fewer than P entries are visible the rest is index -1 and score -inf.

    Raises:
        ValueError: if shapes or dtypes disagree, or, outside jit, if an end is negative.
        NotImplementedError: if the implementation that was asked for cannot run here.
    """
    check(query.ndim == 4, "query.shape", query.shape, "it is [B, Q, N, H]: reshape it.")
    batch, queries, heads, head_dim = query.shape
    dispatch.check_real(query=query, weight=weight, key=key)
    expected = (batch, queries, heads)
    check(weight.shape == expected, "weight.shape", weight.shape, f"query makes it {expected}.")
    fits = key.ndim == 3 and key.shape[::2] == (batch, head_dim)
    check(fits, "key.shape", key.shape, f"query makes it ({batch}, E, {head_dim}).")
    check(picks >= 1, "picks", picks, "a query picks an entry at least: raise it.")
    given = segment is not None, entry_segment is not None
    check(len(set(given)) == 1, "(segment, entry_segment) given", given, "documents need both.")
    dispatch.check_whole(end=end, position=position, segment=segment, entry_segment=entry_segment)
    entries = key.shape[1]

    def rows(name: str, x: Array | None, count: int) -> Int[Array, "B X"]:
        if x is None:
            x = jnp.zeros(count, jnp.int32)
        fits = x.shape in ((count,), (batch, count))
        check(fits, f"{name}.shape", x.shape, f"it is ({count},) or ({batch}, {count}).")
        return jnp.broadcast_to(x, (batch, count)).astype(jnp.int32)

    if position is None:
        position = jnp.arange(queries)
    slots, end = (end, valid), rows("end", end, entries)
    if valid is not None:
        end = jnp.where(rows("valid", valid, entries) > 0, end, NEVER)
    if not any(isinstance(x, jax.core.Tracer) for x in slots):
        low = np.min(np.where(True if valid is None else valid, slots[0], 0), initial=0)
        check(low >= 0, "smallest end", low, "entries end at a token: mask empty slots with valid.")
    entry_segment = rows("entry_segment", entry_segment, entries)
    if entries == 0:  # a slot that nobody sees spares every implementation this case
        key = jnp.zeros((batch, 1, head_dim), key.dtype)
        end, entry_segment = jnp.full((batch, 1), NEVER), jnp.zeros((batch, 1), jnp.int32)
    if not query.size:  # without queries there is nothing to cut into tiles
        none = jnp.full((batch, queries, picks), -1, jnp.int32)
        return Picks(
            none, jnp.full(none.shape, -jnp.inf, jnp.promote_types(query.dtype, "float32"))
        )
    return dispatch.call(
        "index_topk",
        IMPLEMENTATIONS,
        implementation,
        query,
        weight,
        key,
        rows("position", position, queries),
        end,
        rows("segment", segment, queries),
        entry_segment,
        picks=picks,
    )
