# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoint tensors that are a function of their name alone, so that golden files need no weights.

Integer arithmetic makes them the same bits everywhere; the scales keep every part of a DeepSeek-V4
decoder at work: gates, biases, sinks and mixing matrices are all far from their fresh values.
"""

import math
import zlib

import numpy as np

SCALES = {  # by the end of a tensor's name: mean and half width of a uniform distribution
    "norm.weight": (1.0, 0.25),
    "ape": (0.0, 1.5),
    "attn_sink": (0.0, 1.0),
    "gate.bias": (0.0, 0.3),
    "_base": (0.0, 1.0),
    "_scale": (1.0, 0.5),
    "embed.weight": (0.0, 1.0),
}


# What transformers spells in another way.
SPELLINGS = {
    "model.": "",
    "embed_tokens": "embed",
    "hc_head.hc_": "hc_head_",
    ".attn.norm": ".attn.kv_norm",
}


def _bits(name: str, count: int) -> np.ndarray:
    """Splitmix64 over the elements, seeded by the name."""
    x = np.arange(count, dtype=np.uint64) + (np.uint64(zlib.crc32(name.encode())) << np.uint64(32))
    with np.errstate(over="ignore"):
        x = x * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def tokens(count: int, vocab_size: int) -> np.ndarray:
    """A prompt, int32 [1, count]."""
    return (_bits("tokens", count) % np.uint64(vocab_size)).astype(np.int32)[None]


def tensor(name: str, shape: tuple[int, ...], num_experts: int) -> np.ndarray:
    """The tensor of this name: float32, or int64 for a table of experts.

    Both spellings of a name give the same values.
    """
    for theirs, ours in SPELLINGS.items():
        name = name.replace(theirs, ours)
    if name.endswith("tid2eid"):
        first = _bits(name, shape[0])[:, None] + np.arange(shape[1], dtype=np.uint64)
        return (first % np.uint64(num_experts)).astype(np.int64)
    uniform = (_bits(name, math.prod(shape)) >> np.uint64(40)).astype(np.float64) / 2**23 - 1
    known = [scale for end, scale in SCALES.items() if name.endswith(end)]
    mean, half_width = known[0] if known else (0.0, math.sqrt(3 / shape[-1]))
    return (mean + half_width * uniform).reshape(shape).astype(np.float32)
