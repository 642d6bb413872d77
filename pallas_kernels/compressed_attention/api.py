# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention over the tokens nearby and every compressed entry that is complete."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels import dispatch
from pallas_kernels.compressed_attention.masks import reads
from pallas_kernels.dispatch import Implementation, check
from pallas_kernels.masks import NEVER

IMPLEMENTATIONS = ("pallas_tpu", "pallas_gpu", "xla_blocked", "reference")


def _check_end(end: Int[Array, "*B E"], valid: Bool[Array, "*B E"] | None) -> None:
    """Refuses ends that are negative or decrease; they are seen outside jit only."""
    if isinstance(end, jax.core.Tracer) or isinstance(valid, jax.core.Tracer):
        return
    rows = np.atleast_2d(np.asarray(end))
    real = np.broadcast_to(True if valid is None else np.asarray(valid), rows.shape)
    for row, real_row in zip(rows, real, strict=True):
        ends = row[real_row]
        check(bool((ends >= 0).all()), "end", ends, "positions are not negative: mask by valid.")
        check(bool((np.diff(ends) >= 0).all()), "end", ends, "entries are sorted by their end.")


def compressed_attention(
    query: Float[Array, "B Q N H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K H"] | None,
    entry_key: Float[Array, "B E K H"],
    entry_value: Float[Array, "B E K H"] | None,
    end: Int[Array, "*B E"],
    *,
    window: int | None,
    tail_only: bool = False,
    valid: Bool[Array, "*B E"] | None = None,
    query_position: Int[Array, "*B Q"] | None = None,
    first: Int[Array, "B"] | None = None,
    segment: Int[Array, "B T"] | None = None,
    sink: Float[Array, "N"] | None = None,
    implementation: Implementation = None,
) -> Float[Array, "B Q N H"]:
    """One softmax over exact tokens nearby, the entries that are complete, and the sink.

    The attention of arXiv:2609.36322; without an indexer that of DeepSeek-V4 (arXiv:2606.19348).

    Args:
        query: finished queries (normalised, rotated); the scale H^-0.5 is applied here.
        key: finished keys of the tokens 0 .. T - 1.
        value: their values, or None where the keys serve as values, here and in the entries.
        entry_key: finished keys of the entries.
        entry_value: their values, or None with `value`.
        end: last token of each entry, inclusive, ascending; by row where chunks are dynamic. The
            query at p sees the entry once end <= p.
        window: exact tokens that a query reads, its own included; None for the whole past.
        tail_only: read only those that no visible entry covers: the current incomplete window.
        valid: whether each slot holds an entry; None for all.
        query_position: position of each query, or None for 0 .. T - 1; by row where streams are
            at different positions. Those before the first exact token read nothing.
        first: position of the first exact token of each row, for streams that keep the last ones
            only; None for 0. Tokens at negative positions are not read.
        segment: document of each token in packed rows, contiguous. Tokens of other documents are
            not read; an entry belongs to the document of its last token, so entries that mix two
            are for the caller to make invalid.
        sink: one logit a head that takes weight and gives nothing, or None.
        implementation: one of IMPLEMENTATIONS, several to try in order, or None for the best here.

    Returns:
        The mixed values, in the dtype of the values; scores and softmax are float32 or wider. A
        query that reads nothing gives zeros.

    Raises:
        ValueError: if shapes or dtypes disagree, or, outside jit, if ends are negative or unsorted.
        NotImplementedError: if the implementation that was asked for cannot run here.
    """
    check(query.ndim == 4, "query.shape", query.shape, "it is [B, Q, N, H]: reshape it.")
    batch, queries, heads, head_dim = query.shape
    check(head_dim > 0, "query.shape", query.shape, "a head has a channel at least.")
    together = (value is None) == (entry_value is None)
    check(together, "value", value, "keys serve as values in tokens and entries alike, or nowhere.")
    pairs = {}
    for kind, names, pair in (
        ("T", ("key", "value"), (key, value)),
        ("E", ("entry_key", "entry_value"), (entry_key, entry_value)),
    ):
        fits = pair[0].ndim == 4 and pair[0].shape[::3] == (batch, head_dim)
        wanted = f"query makes it ({batch}, {kind}, K, {head_dim})."
        check(fits, f"{names[0]}.shape", pair[0].shape, wanted)
        pairs[kind] = tuple(x for x in pair if x is not None)
        expected = (batch, pair[0].shape[1], key.shape[2], head_dim)
        for name, x in zip(names, pairs[kind], strict=False):
            check(x.shape == expected, f"{name}.shape", x.shape, f"key makes it {expected}.")
            same = x.dtype == query.dtype
            check(same, f"{name}.dtype", x.dtype, f"query is {query.dtype}: cast one of them.")
    dispatch.check_real(query=query, sink=sink)
    tokens, kv_heads = key.shape[1:3]
    entries = entry_key.shape[1]
    even = kv_heads > 0 and heads % kv_heads == 0
    check(even, "key-value heads", kv_heads, f"they divide the {heads} heads of query.")
    check(window is None or window >= 1, "window", window, "a query reads its own token: raise it.")
    slots = ((entries,), (batch, entries))
    check(end.shape in slots, "end.shape", end.shape, f"it is one of {slots}.")
    if valid is not None:
        check(valid.shape in slots, "valid.shape", valid.shape, f"it is one of {slots}.")
    dispatch.check_whole(end=end, query_position=query_position, first=first, segment=segment)
    _check_end(end, valid)
    if sink is not None:
        check(sink.shape == (heads,), "sink.shape", sink.shape, f"query makes it ({heads},).")

    in_order = query_position is None
    if query_position is None:
        same = queries == tokens
        check(same, "query.shape", query.shape, f"key has {tokens} tokens: pass query_position.")
        query_position = jnp.arange(tokens)
    shapes = ((queries,), (batch, queries))
    fits = query_position.shape in shapes
    check(fits, "query_position.shape", query_position.shape, f"it is one of {shapes}.")
    query_position, end = jnp.atleast_2d(query_position), jnp.atleast_2d(end)
    if valid is not None:
        end = jnp.where(jnp.atleast_2d(valid), end, NEVER)
    if first is not None:  # from here on positions count from the first exact token
        check(first.shape == (batch,), "first.shape", first.shape, f"query makes it ({batch},).")
        check(segment is None, "first", "given", "packed rows start at position 0: leave it out.")
        query_position = query_position - first[:, None]
        end = jnp.where(end == NEVER, NEVER, end - first[:, None])
    if segment is None:
        token_segment = jnp.zeros((1, tokens), jnp.int32)
        query_segment = jnp.zeros((1, queries), jnp.int32)
        entry_segment = jnp.zeros(end.shape, jnp.int32)
    else:
        expected = (batch, tokens)
        wanted = f"key makes it {expected}."
        check(segment.shape == expected, "segment.shape", segment.shape, wanted)
        token_segment = segment
        end = jnp.broadcast_to(end, (batch, entries))
        pick = jnp.vectorize(lambda s, at: s[jnp.clip(at, 0, tokens - 1)], signature="(t),(x)->(x)")
        query_segment, entry_segment = pick(segment, query_position), pick(segment, end)
    if tokens == 0:  # a token that nobody reads spares every implementation this case
        pairs["T"] = tuple(jnp.zeros((batch, 1, kv_heads, head_dim), x.dtype) for x in pairs["T"])
        token_segment = jnp.full((1, 1), NEVER)
    ranges = reads(
        query_position.astype(jnp.int32),
        query_segment.astype(jnp.int32),
        token_segment.astype(jnp.int32),
        end.astype(jnp.int32),
        entry_segment.astype(jnp.int32),
        window=window,
        tail_only=tail_only,
    )
    if first is not None:
        ranges = ranges._replace(since=jnp.maximum(ranges.since, -first[:, None]))
    if not query.size:  # without queries there is nothing to cut into tiles
        return query
    return dispatch.call(
        "compressed_attention",
        IMPLEMENTATIONS,
        implementation,
        query,
        pairs["T"],
        pairs["E"],
        ranges,
        sink,
        span=window if in_order else None,
    )
