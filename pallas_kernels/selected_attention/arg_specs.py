# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Shapes of real models, for lowering, compilation and benchmarks: operands, and options by name.

DeepSeek-V4 makes an entry of every 4 tokens; one head of 512 channels is key and value at once. The
queries are the last 8192, with the window before them: all 131072 with their results (17 GB for
DeepSeek-V4-Flash) would not fit a v5e.
"""

from typing import Any

import jax
import jax.numpy as jnp

WINDOW = 128

Spec = tuple[tuple[Any, ...], dict[str, Any]]


def _deepseek_v4(tokens: int, queries: int, heads: int, picks: int) -> Spec:
    def struct(*shape: int, dtype: jnp.dtype = jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    at_hand = min(queries + WINDOW - 1, tokens)
    operands = (
        struct(1, queries, heads, 512),
        (struct(1, at_hand, 1, 512),),
        (struct(1, tokens // 4, 1, 512),),
        struct(1, queries, picks, dtype=jnp.int32),
        struct(1, at_hand, dtype=jnp.int32),
        struct(heads, dtype=jnp.float32),
    )
    return operands, {"window": WINDOW}


SPECS: dict[str, Spec] = {
    "deepseek_v4_flash_8k": _deepseek_v4(8192, 8192, 64, 512),
    "deepseek_v4_flash_128k": _deepseek_v4(131072, 8192, 64, 512),
    "deepseek_v4_pro_128k": _deepseek_v4(131072, 8192, 128, 1024),
}
