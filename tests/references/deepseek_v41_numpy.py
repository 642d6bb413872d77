# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4.1's attention over its layers, spelled out: float64, one token after the other.

Written from the paper's formulas (arXiv:2609.19969) and the published layout of the weights; never
compared with released code or weights. It shares with V4's reference the steps that did not change
(rotation, attending, output projection) and spells out what did:

- windows of 2 that do not overlap and have no bias, or of 1, which need no gate;
- entries made at the sources only, selections at the index sources only, both handed on;
- index keys made from the normalised entry before it is turned;
- a second, coarser selection: blocks of entries, inside which later layers search;
- no norm of the heads' queries.

What a layer is given is its normalised input; hyper-connections and feed-forward layers are not
here. The rounding of the cache to fp4 and fp8 is not simulated.
"""

import dataclasses
import math

import numpy as np

from tests.references.deepseek_v4_numpy import (
    Sizes,
    Weights,
    attend_layer,
    best,
    count_visible,
    frequencies,
    index_queries,
    index_score,
    part,
    query_latent,
    rms_norm,
    rotate,
    softmax,
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which layer compresses, selects and narrows; the defaults are V4.1-Flash's."""

    ratios: tuple[int, ...] = (0,) * 2 + (2,) * 18 + (1,) * 20
    kv_sources: tuple[int, ...] = (2, 8, 14, 20)
    index_sources: tuple[int, ...] = (2, 8, 14, 20, 24, 28, 32, 36)
    block_source: int = 20
    block_size: int = 8
    block_topk: int = 2048


@dataclasses.dataclass
class Shared:
    """What layers hand on to those above: the latest of each."""

    entries: np.ndarray | None = None  # [E, head width], turned
    keys: np.ndarray | None = None  # [E, index width], turned
    picks: list[list[int]] | None = None  # of each query, in order of position
    blocks: list[list[int]] | None = None  # of each query


def latents(x: np.ndarray, weights: Weights, sizes: Sizes, ratio: int) -> np.ndarray:
    """Entries before they are turned, [T // ratio, head width]."""
    normed = []
    for entry in range(len(x) // ratio):
        tokens = range(ratio * entry, ratio * (entry + 1))
        values = [weights["wkv.weight"] @ x[t] for t in tokens]
        pooled = values[0]
        if ratio > 1:
            gates = [weights["wgate.weight"] @ x[t] for t in tokens]
            pooled = np.zeros(len(pooled))
            for channel in range(len(pooled)):
                share = softmax([float(gate[channel]) for gate in gates])
                pooled[channel] = sum(s * v[channel] for s, v in zip(share, values, strict=True))
        normed.append(rms_norm(pooled, weights["norm.weight"], sizes.eps))
    return np.array(normed)


def turn_entries(rows: np.ndarray, ratio: int, freqs: list[float]) -> np.ndarray:
    """Each row turned to the first token of its window."""
    return np.array([rotate(row, ratio * entry, freqs) for entry, row in enumerate(rows)])


def index_keys(rows: np.ndarray, weights: Weights, sizes: Sizes) -> np.ndarray:
    """Keys of the entries before they are turned."""
    return np.array(
        [rms_norm(weights["wk.weight"] @ row, weights["k_norm.weight"], sizes.eps) for row in rows]
    )


def best_blocks(scores: list[float], size: int, topk: int) -> list[int]:
    """Blocks of entries by their best visible score; the newest one is always among them."""
    count = math.ceil(len(scores) / size)
    maxima = [max(scores[b * size : (b + 1) * size]) for b in range(count)]
    if maxima:
        maxima[-1] = math.inf
    return best(maxima, topk)


def select_layer(
    x: np.ndarray, weights: Weights, sizes: Sizes, plan: Plan, layer: int, shared: Shared
) -> None:
    """An index source picks entries for every query, and the block source blocks as well."""
    ratio = plan.ratios[layer]
    freqs = frequencies(sizes, ratio)
    own = part(weights, "indexer.")
    picks, blocks = [], []
    for p in range(len(x)):
        latent = query_latent(x[p], weights, sizes)
        queries, head_weights = index_queries(x[p], latent, p, own, sizes, freqs)
        visible = list(range(count_visible(p, ratio)))
        if layer > plan.block_source:
            visible = [e for e in visible if e // plan.block_size in shared.blocks[p]]
        scores = [index_score(queries, head_weights, shared.keys[e]) for e in visible]
        picks.append([visible[i] for i in best(scores, sizes.index_topk)])
        if layer == plan.block_source:
            blocks.append(best_blocks(scores, plan.block_size, plan.block_topk))
    shared.picks = picks
    if layer == plan.block_source:
        shared.blocks = blocks


def attention_of_layer(
    x: np.ndarray, weights: Weights, sizes: Sizes, plan: Plan, layer: int, shared: Shared
) -> np.ndarray:
    """Output [T, D] of one layer; updates what is shared if the layer is a source."""
    x = np.asarray(x, np.float64)
    weights = {name: np.asarray(w, np.float64) for name, w in weights.items()}
    ratio = plan.ratios[layer]
    freqs = frequencies(sizes, ratio)
    if layer in plan.kv_sources:
        rows = latents(x, part(weights, "compressor."), sizes, ratio)
        shared.entries = turn_entries(rows, ratio, freqs)
        shared.keys = turn_entries(index_keys(rows, part(weights, "indexer."), sizes), ratio, freqs)
    if layer in plan.index_sources:
        select_layer(x, weights, sizes, plan, layer, shared)
    entries = shared.entries if ratio else np.zeros((0, 0))
    picks = shared.picks if ratio else [[] for _ in x]
    return attend_layer(x, entries, picks, weights, sizes, freqs, head_norm=False)


def attention_of_layers(
    inputs: list[np.ndarray], weights: list[Weights], sizes: Sizes, plan: Plan
) -> tuple[list[np.ndarray], list[list[list[int]]]]:
    """Outputs [T, D] of all layers on their inputs [T, D], and the picks each of them attends to.

    `sizes.eps` is 1e-20 in V4.1.
    """
    shared, outputs, picks = Shared(), [], []
    for layer, (x, own) in enumerate(zip(inputs, weights, strict=True)):
        outputs.append(attention_of_layer(x, own, sizes, plan, layer, shared))
        picks.append(shared.picks if plan.ratios[layer] else [[] for _ in x])
    return outputs, picks
