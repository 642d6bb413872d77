# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Shapes for lowering, compilation and benchmarks: operands, and options by name.

Slots for a chunk of every 8 tokens on average, with one gate a channel or one a token: the widths
of a Qwen3-0.6B cache (8 heads of 128 channels) and of a DeepSeek-V4 one (512).
"""

from typing import Any

import jax
import jax.numpy as jnp

Spec = tuple[tuple[Any, ...], dict[str, Any]]


def _every_eighth(tokens: int, channels: int, gates: int) -> Spec:
    operands = (
        jax.ShapeDtypeStruct((1, tokens, channels), jnp.bfloat16),
        jax.ShapeDtypeStruct((1, tokens, gates), jnp.bfloat16),
        jax.ShapeDtypeStruct((1, tokens), jnp.int32),
    )
    return operands, {"entries": tokens // 8}


SPECS: dict[str, Spec] = {
    "qwen3_0_6b_4k": _every_eighth(4096, 1024, 1024),
    "qwen3_0_6b_128k": _every_eighth(131072, 1024, 1024),
    "qwen3_0_6b_128k_one_gate": _every_eighth(131072, 1024, 1),
    "deepseek_v4_128k": _every_eighth(131072, 512, 512),
}
