# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Shapes of real models, for lowering, compilation and benchmarks: operands, and options by name.

A Qwen3-0.6B cache has 8 heads of 128 channels, pooled with one gate a head or a channel.
DeepSeek-V4, Flash and Pro alike, pools 512 channels with a gate each: two lanes of 4 tokens (CSA),
or one of 128 (HCA).
"""

from typing import Any

import jax
import jax.numpy as jnp

Spec = tuple[tuple[Any, ...], dict[str, Any]]


def _chunks(tokens: int, stride: int, lanes: int, channels: int, gates: int) -> Spec:
    rows = (1, tokens // stride, stride, lanes)
    operands = (
        jax.ShapeDtypeStruct((*rows, channels), jnp.bfloat16),
        jax.ShapeDtypeStruct((*rows, gates), jnp.float32),
        jax.ShapeDtypeStruct((stride, lanes, gates), jnp.float32),
    )
    return operands, {}


SPECS: dict[str, Spec] = {
    "qwen3_0_6b_4k": _chunks(4096, 8, 1, 1024, 8),
    "qwen3_0_6b_32k": _chunks(32768, 8, 1, 1024, 8),
    "qwen3_0_6b_128k": _chunks(131072, 8, 1, 1024, 8),
    "qwen3_0_6b_128k_vector": _chunks(131072, 8, 1, 1024, 1024),
    "deepseek_v4_csa_128k": _chunks(131072, 4, 2, 512, 512),
    "deepseek_v4_hca_128k": _chunks(131072, 128, 1, 512, 512),
}
