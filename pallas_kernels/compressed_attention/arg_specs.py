# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Shapes of real models, for lowering, compilation and benchmarks: operands, and options by name.

Qwen3-0.6B with W8/S8 reads 16 exact tokens. DeepSeek-V4 reads 128; one head of 512 channels is key
and value at once. Its CSA layers make an entry of every 4 tokens, all of them read here, and its
HCA layers of every 128. At T = 131072 its queries take 134 MB a head: 16 heads are the share of one
chip of 4 (Flash, 64 heads) or of 8 (Pro, 128 heads).
"""

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.compressed_attention.masks import Reads

Spec = tuple[tuple[Any, ...], dict[str, Any]]


def _struct(*shape: int, dtype: jnp.dtype = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _causal(
    tokens: int, every: int, heads: int, kv_heads: int, head_dim: int, window: int, *, shared: bool
) -> Spec:
    entries = tokens // every
    near, entry = (
        tuple(_struct(1, rows, kv_heads, head_dim) for _ in range(1 if shared else 2))
        for rows in (tokens, entries)
    )
    lengths = (tokens, tokens, tokens, tokens, entries, entries)
    indices: list[Any] = [_struct(1, length, dtype=jnp.int32) for length in lengths]
    operands = (
        _struct(1, tokens, heads, head_dim),
        near,
        entry,
        Reads(*indices),
        _struct(heads, dtype=jnp.float32),
    )
    return operands, {"span": window}


SPECS: dict[str, Spec] = {
    "qwen3_0_6b_4k": _causal(4096, 8, 16, 8, 128, 16, shared=False),
    "qwen3_0_6b_32k": _causal(32768, 8, 16, 8, 128, 16, shared=False),
    "qwen3_0_6b_128k": _causal(131072, 8, 16, 8, 128, 16, shared=False),
    "deepseek_v4_csa_128k_16_heads": _causal(131072, 4, 16, 1, 512, 128, shared=True),
    "deepseek_v4_hca_128k_16_heads": _causal(131072, 128, 16, 1, 512, 128, shared=True),
    "deepseek_v4_flash_csa_8k": _causal(8192, 4, 64, 1, 512, 128, shared=True),
    "deepseek_v4_pro_csa_8k": _causal(8192, 4, 128, 1, 512, 128, shared=True),
    "deepseek_v4_pro_hca_8k": _causal(8192, 128, 128, 1, 512, 128, shared=True),
}
