# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Shapes of real models, for lowering, compilation and benchmarks: operands, and options by name.

DeepSeek-V4 makes an entry of every 4 tokens and has 64 index heads of 128 channels.
"""

from typing import Any

import jax
import jax.numpy as jnp

Spec = tuple[tuple[Any, ...], dict[str, Any]]


def _deepseek_v4(tokens: int, picks: int) -> Spec:
    entries = tokens // 4

    def struct(*shape: int, dtype: jnp.dtype = jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    rows = [struct(1, count, dtype=jnp.int32) for count in (tokens, entries)]
    operands = (struct(1, tokens, 64, 128), struct(1, tokens, 64), struct(1, entries, 128))
    return (*operands, *rows, *rows), {"picks": picks}


SPECS: dict[str, Spec] = {
    "deepseek_v4_flash_8k": _deepseek_v4(8192, 512),
    "deepseek_v4_flash_128k": _deepseek_v4(131072, 512),
    "deepseek_v4_pro_128k": _deepseek_v4(131072, 1024),
}
