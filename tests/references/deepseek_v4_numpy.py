# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4's attention of one layer, spelled out: float64, one token after the other.

Written from the paper's formulas (arXiv:2606.19348) and the published layout of the weights, for
reading: a function a step, no batching and no cache, so that none of the faults of streaming code
can be in it. Weights are a dict by the released names, without the prefix `layers.N.attn.`.
"""

import dataclasses
import math

import numpy as np

Weights = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What the shapes of the weights do not tell; the defaults are V4's."""

    heads: int
    rope_dims: int
    groups: int
    index_heads: int
    index_topk: int
    window: int = 128
    eps: float = 1e-6
    theta: float = 10_000.0
    compress_theta: float = 160_000.0
    yarn_factor: float = 16.0
    yarn_original: int = 65_536
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0
    simulate: bool = False  # the rounding to fp8 and fp4 of DeepSeek's own code


# Norm and rotation.


def rms_norm(x: np.ndarray, weight: np.ndarray | float, eps: float) -> np.ndarray:
    mean_square = sum(float(v) ** 2 for v in x) / len(x)
    return x / math.sqrt(mean_square + eps) * weight


def plain_frequencies(dims: int, theta: float) -> list[float]:
    return [theta ** (-2 * i / dims) for i in range(dims // 2)]


def yarn_frequencies(sizes: Sizes) -> list[float]:
    """Fast frequencies stay, slow ones are divided by the factor, those between are blended."""
    dims, theta = sizes.rope_dims, sizes.compress_theta

    def index_of(turns: float) -> float:
        """Which frequency makes so many turns within the original length."""
        return dims * math.log(sizes.yarn_original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(index_of(sizes.yarn_beta_fast)), 0)
    high = min(math.ceil(index_of(sizes.yarn_beta_slow)), dims - 1)
    blended = []
    for i, f in enumerate(plain_frequencies(dims, theta)):
        ramp = (i - low) / (high - low) if high > low else float(i > low)
        kept = 1 - min(max(ramp, 0.0), 1.0)
        blended.append(f / sizes.yarn_factor * (1 - kept) + f * kept)
    return blended


def frequencies(sizes: Sizes, ratio: int) -> list[float]:
    """A layer that only looks at its raw window has its own table."""
    return yarn_frequencies(sizes) if ratio else plain_frequencies(sizes.rope_dims, sizes.theta)


def rotate(x: np.ndarray, position: int, freqs: list[float], *, inverse: bool = False):
    """Turns the neighbours (2i, 2i + 1) of the last channels."""
    turned = np.array(x, np.float64)
    first = len(x) - 2 * len(freqs)
    for i, f in enumerate(freqs):
        angle = -position * f if inverse else position * f
        a, b = first + 2 * i, first + 2 * i + 1
        turned[a] = x[a] * math.cos(angle) - x[b] * math.sin(angle)
        turned[b] = x[a] * math.sin(angle) + x[b] * math.cos(angle)
    return turned


# Rounding that DeepSeek's own code simulates.

FP8 = [(8 * (c >= 8) + c % 8) * 2.0 ** (max(c // 8, 1) - 10) for c in range(127)]
FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def to_nearest(value: float, magnitudes: list[float]) -> float:
    """The nearest magnitude with the value's sign; between two, the one of even code."""
    distances = [abs(abs(value) - m) for m in magnitudes]
    best = min(distances)
    codes = [code for code, distance in enumerate(distances) if distance == best]
    code = min(codes, key=lambda c: c % 2)
    return math.copysign(magnitudes[code], value)


def round_groups(x: np.ndarray, group: int, magnitudes: list[float], smallest: float):
    """Groups of channels share a power of two, the least that keeps the largest in range."""
    rounded = np.array(x, np.float64)
    for start in range(0, len(x), group):
        part = x[start : start + group]
        largest = max(max(abs(float(v)) for v in part), smallest)
        scale = 2.0 ** math.ceil(math.log2(largest / magnitudes[-1]))
        rounded[start : start + group] = [scale * to_nearest(v / scale, magnitudes) for v in part]
    return rounded


def round_cached(x: np.ndarray, sizes: Sizes) -> np.ndarray:
    """fp8 of what is not rotated."""
    kept = len(x) - sizes.rope_dims
    return np.concatenate([round_groups(x[:kept], 64, FP8, 1e-4), x[kept:]])


def hadamard(x: np.ndarray) -> np.ndarray:
    """The orthonormal Hadamard transform: sign (-1)^(number of ones that i and j share)."""
    n = len(x)
    signs = [[(-1) ** (i & j).bit_count() for j in range(n)] for i in range(n)]
    return np.array(signs) @ x / math.sqrt(n)


def round_index(x: np.ndarray) -> np.ndarray:
    return round_groups(hadamard(x), 32, FP4, 6 * 2.0**-126)


# Compression.


def slots(entry: int, ratio: int) -> list[tuple[int, int, int]]:
    """(token, lane, row of the bias) of each slot that an entry pools.

    Stride 4 overlaps: lane 0 of the four tokens before, if there are any, then lane 1 of its own.
    """
    own = [(ratio * entry + j, 1 if ratio == 4 else 0, j) for j in range(ratio)]
    if ratio != 4 or entry == 0:
        return own
    return [(ratio * (entry - 1) + j, 0, j) for j in range(ratio)] + own


def softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    weights = [math.exp(v - top) for v in logits]
    return [w / sum(weights) for w in weights]


def pool(x: np.ndarray, weights: Weights, entry: int, ratio: int) -> np.ndarray:
    """A softmax over the slots, in each channel its own."""
    wkv, wgate, ape = weights["wkv.weight"], weights["wgate.weight"], weights["ape"]
    lanes = 2 if ratio == 4 else 1
    width = len(wkv) // lanes
    pooled = np.zeros(width)
    for channel in range(width):
        values, scores = [], []
        for token, lane, row in slots(entry, ratio):
            c = lane * width + channel
            values.append(float(wkv[c] @ x[token]))
            scores.append(float(wgate[c] @ x[token]) + float(ape[row, c]))
        pooled[channel] = sum(p * v for p, v in zip(softmax(scores), values, strict=True))
    return pooled


def compress(x: np.ndarray, weights: Weights, sizes: Sizes, ratio: int) -> np.ndarray:
    """Entries [T // ratio, d]: pooled, normalised, turned to the window's first token."""
    freqs = frequencies(sizes, ratio)
    entries = []
    for entry in range(len(x) // ratio):
        h = rms_norm(pool(x, weights, entry, ratio), weights["norm.weight"], sizes.eps)
        entries.append(rotate(h, ratio * entry, freqs))
    return np.array(entries)


def count_visible(position: int, ratio: int) -> int:
    """Entries whose last token is not after the query."""
    return (position + 1) // ratio if ratio else 0


# Indexer.


def part(weights: Weights, prefix: str) -> Weights:
    return {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}


def index_score(queries, head_weights, key) -> float:
    return sum(w * max(float(q @ key), 0.0) for w, q in zip(head_weights, queries, strict=True))


def best(scores: list[float], k: int) -> list[int]:
    """Indices of the k largest, in order of index; among equals the lower index wins."""
    return sorted(sorted(range(len(scores)), key=lambda e: (-scores[e], e))[:k])


def index_queries(
    x: np.ndarray, latent: np.ndarray, position: int, weights: Weights, sizes: Sizes, freqs
) -> tuple[list[np.ndarray], np.ndarray]:
    """Queries of every index head, and the heads' weights."""
    flat = weights["wq_b.weight"] @ latent
    queries = [rotate(q, position, freqs) for q in flat.reshape(sizes.index_heads, -1)]
    width = len(queries[0])
    return queries, weights["weights_proj.weight"] @ x / math.sqrt(width * sizes.index_heads)


def select(x: np.ndarray, weights: Weights, sizes: Sizes, ratio: int) -> list[list[int]]:
    """Entries that each token attends to: all that it may see, or the indexer's picks of them."""
    visible = [count_visible(p, ratio) for p in range(len(x))]
    if ratio != 4:
        return [list(range(n)) for n in visible]
    freqs = frequencies(sizes, ratio)
    own = part(weights, "indexer.")
    keys = compress(x, part(own, "compressor."), sizes, ratio)
    if sizes.simulate:
        keys = [round_index(key) for key in keys]
    picks = []
    for p, n in enumerate(visible):
        latent = query_latent(x[p], weights, sizes)
        queries, head_weights = index_queries(x[p], latent, p, own, sizes, freqs)
        if sizes.simulate:
            queries = [round_index(q) for q in queries]
        scores = [index_score(queries, head_weights, key) for key in keys[:n]]
        picks.append(best(scores, sizes.index_topk))
    return picks


# Core attention.


def query_latent(x: np.ndarray, weights: Weights, sizes: Sizes) -> np.ndarray:
    return rms_norm(weights["wq_a.weight"] @ x, weights["q_norm.weight"], sizes.eps)


def main_queries(
    x: np.ndarray, position: int, weights: Weights, sizes: Sizes, freqs, *, head_norm: bool = True
) -> list[np.ndarray]:
    """One query a head; V4 normalises each, without a weight, before it is turned."""
    flat = weights["wq_b.weight"] @ query_latent(x, weights, sizes)
    heads = list(flat.reshape(sizes.heads, -1))
    if head_norm:
        heads = [rms_norm(q, 1.0, sizes.eps) for q in heads]
    return [rotate(q, position, freqs) for q in heads]


def raw_entry(x: np.ndarray, position: int, weights: Weights, sizes: Sizes, freqs) -> np.ndarray:
    """What the raw window keeps of a token, key and value in one."""
    normed = rms_norm(weights["wkv.weight"] @ x, weights["kv_norm.weight"], sizes.eps)
    return rotate(normed, position, freqs)


def attend(query: np.ndarray, entries: list[np.ndarray], sink: float) -> np.ndarray:
    """One softmax over the entries and a sink that is worth nothing."""
    logits = [float(query @ e) / math.sqrt(len(query)) for e in entries]
    weights = softmax([*logits, float(sink)])[:-1]
    return sum(w * e for w, e in zip(weights, entries, strict=True))


def project_out(heads: list[np.ndarray], weights: Weights, sizes: Sizes) -> np.ndarray:
    """Heads in groups, each group through its own block of wo_a, all through wo_b."""
    groups = np.concatenate(heads).reshape(sizes.groups, -1)
    blocks = weights["wo_a.weight"].reshape(sizes.groups, -1, groups.shape[1])
    inner = [block @ group for block, group in zip(blocks, groups, strict=True)]
    return weights["wo_b.weight"] @ np.concatenate(inner)


def attend_layer(
    x: np.ndarray,
    entries: np.ndarray,
    picks: list[list[int]],
    weights: Weights,
    sizes: Sizes,
    freqs: list[float],
    *,
    head_norm: bool = True,
) -> np.ndarray:
    """Output [T, D] over the raw window and the picked entries, those of this layer or another."""
    raw = [raw_entry(x[p], p, weights, sizes, freqs) for p in range(len(x))]
    if sizes.simulate:
        raw = [round_cached(e, sizes) for e in raw]
    outputs = []
    for p in range(len(x)):
        keys = [raw[j] for j in range(max(0, p - sizes.window + 1), p + 1)]
        keys += [entries[e] for e in picks[p]]
        queries = main_queries(x[p], p, weights, sizes, freqs, head_norm=head_norm)
        heads = [
            rotate(attend(q, keys, sink), p, freqs, inverse=True)
            for q, sink in zip(queries, weights["attn_sink"], strict=True)
        ]
        outputs.append(project_out(heads, weights, sizes))
    return np.array(outputs)


def attention(x: np.ndarray, weights: Weights, sizes: Sizes, ratio: int) -> np.ndarray:
    """The attention of one layer on its normalised input x [T, D]; ratio 0, 4 or 128 (or any)."""
    x = np.asarray(x, np.float64)
    weights = {name: np.asarray(w, np.float64) for name, w in weights.items()}
    entries = np.zeros((0, 0))
    if ratio:
        entries = compress(x, part(weights, "compressor."), sizes, ratio)
        if sizes.simulate:
            entries = np.array([round_cached(e, sizes) for e in entries])
    picks = select(x, weights, sizes, ratio)
    return attend_layer(x, entries, picks, weights, sizes, frequencies(sizes, ratio))
