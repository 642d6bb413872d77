# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention over the tokens nearby and the entries that were picked for each query."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pallas_kernels import dispatch
from pallas_kernels.dispatch import Implementation, check
from pallas_kernels.masks import NEVER

IMPLEMENTATIONS = ("pallas_tpu", "pallas_gpu", "xla_blocked", "reference")


def selected_attention(
    query: Float[Array, "B Q N H"],
    key: Float[Array, "B X K H"],
    value: Float[Array, "B X K H"] | None,
    entry_key: Float[Array, "B E K H"],
    entry_value: Float[Array, "B E K H"] | None,
    index: Int[Array, "B Q P"],
    *,
    window: int,
    position: Int[Array, "*B"] | None = None,
    segment: Int[Array, "B X"] | None = None,
    sink: Float[Array, "N"] | None = None,
    implementation: Implementation = None,
) -> Float[Array, "B Q N H"]:
    """One softmax over the last `window` tokens, the picked entries and the sink.

    The core attention of DeepSeek-V4 (arXiv:2606.19348) where an indexer chooses.

    A sequence may come in parts: with the window - 1 tokens before it, a part gives what it would
    give within the whole. At 131072 tokens the queries of DeepSeek-V4-Flash alone fill half of the
    memory of a v5e.

    Args:
        query: finished queries of consecutive tokens; the scale H^-0.5 is applied here.
        key: finished keys of consecutive tokens, the last Q of them the queries' own.
        value: their values, or None where the keys serve as values, here and in the entries.
        entry_key: finished keys of the entries.
        entry_value: their values, or None with `value`.
        index: entries that each query reads, of those that it may see; -1 for none. An entry that
            is named twice counts twice.
        window: exact tokens that a query reads, its own included.
        position: position of the first query, [] or [B], which says how many of the X - Q tokens
            before it exist: the last ones, and no more than `position`. All of them if None.
        segment: document of each token in packed rows; exact tokens of others are not read.
        sink: one logit a head that takes weight and gives nothing, or None.
        implementation: one of IMPLEMENTATIONS, several to try in order, or None for the best here.

    Returns:
        The mixed values, in the dtype of `query`; scores and softmax are float32 or
        wider.

    Raises:
        ValueError: if shapes or dtypes disagree, or, outside jit, if an index is no entry's.
        NotImplementedError: if the implementation that was asked for cannot run here.
    """
    check(query.ndim == 4, "query.shape", query.shape, "it is [B, Q, N, H]: reshape it.")
    batch, queries, heads, head_dim = query.shape
    given = value is not None, entry_value is not None
    check(len(set(given)) == 1, "(value, entry_value) given", given, "keys serve for both or none.")
    near = (key,) if value is None else (key, value)
    entry = (entry_key,) if entry_value is None else (entry_key, entry_value)
    fits = entry_key.ndim == 4 and entry_key.shape[::3] == (batch, head_dim)
    check(fits, "entry_key.shape", entry_key.shape, f"query makes it ({batch}, E, K, {head_dim}).")
    _, entries, kv_heads, _ = entry_key.shape
    tokens = key.shape[1] if key.ndim == 4 else queries
    check(tokens >= queries, "key.shape", key.shape, f"it has a token a query: {queries} or more.")
    even = kv_heads > 0 and heads % kv_heads == 0
    check(even, "key-value heads", kv_heads, f"they divide the {heads} heads of query.")
    for names, pair, count in (
        (("key", "value"), near, tokens),
        (("entry_key", "entry_value"), entry, entries),
    ):
        expected = (batch, count, kv_heads, head_dim)
        for name, x in zip(names, pair, strict=False):
            check(x.shape == expected, f"{name}.shape", x.shape, f"the others make it {expected}.")
            same = x.dtype == query.dtype
            check(same, f"{name}.dtype", x.dtype, f"query is {query.dtype}: cast one of them.")
    dispatch.check_real(query=query, sink=sink)
    fits = index.ndim == 3 and index.shape[:2] == (batch, queries)
    check(fits, "index.shape", index.shape, f"query makes it ({batch}, {queries}, P).")
    dispatch.check_whole(index=index, position=position, segment=segment)
    if not isinstance(index, jax.core.Tracer):
        picked = np.asarray(index)
        low, high = picked.min(initial=-1), picked.max(initial=-1)
        inside = low >= -1 and high < entries
        check(inside, "index", f"{low} .. {high}", f"indices are -1 .. {entries - 1}.")
    check(window >= 1, "window", window, "a query reads its own token at least: raise it.")
    if segment is None:
        segment = jnp.zeros((batch, tokens), jnp.int32)
    expected = (batch, tokens)
    check(segment.shape == expected, "segment.shape", segment.shape, f"key makes it {expected}.")
    if position is not None:
        fits = position.shape in ((), (batch,))
        check(fits, "position.shape", position.shape, f"it is () or ({batch},).")
        missing = tokens - queries - position.reshape(-1, 1)
        # A token that does not exist is in no query's document.
        segment = jnp.where(jnp.arange(tokens) < missing, NEVER, segment)
    if sink is not None:
        check(sink.shape == (heads,), "sink.shape", sink.shape, f"query makes it ({heads},).")
    if not query.size:  # without queries there is nothing to cut into tiles
        return query
    if index.shape[2] == 0:
        index = jnp.full((batch, queries, 1), -1)
    if entries == 0:  # a row that nobody picks spares every implementation this case
        entry = tuple(jnp.zeros((batch, 1, kv_heads, head_dim), x.dtype) for x in entry)
    return dispatch.call(
        "selected_attention",
        IMPLEMENTATIONS,
        implementation,
        query,
        near,
        entry,
        index.astype(jnp.int32),
        segment.astype(jnp.int32),
        sink,
        window=window,
    )
