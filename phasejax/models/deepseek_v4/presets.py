# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The released DeepSeek-V4 models (values of their config.json), and a tiny one for tests."""

from phasejax.models.deepseek_v4.config import DeepseekV4Config
from phasejax.models.deepseek_v4.rope import Yarn
from phasejax.validation import nearest

_FLASH = DeepseekV4Config(
    vocab_size=129_280,
    num_layers=43,
    width=4096,
    num_heads=64,
    query_rank=1024,
    output_groups=8,
    num_experts=256,
    expert_width=2048,
    route_scale=1.5,
    index_topk=512,
    compress_ratios=(0, 0, *(4, 128) * 20, 4, 0),  # the last one is the draft layer's
    param_dtype="bfloat16",
    compute_dtype="bfloat16",
)
_PRO = DeepseekV4Config(
    vocab_size=129_280,
    num_layers=61,
    width=7168,
    num_heads=128,
    query_rank=1536,
    output_groups=16,
    num_experts=384,
    expert_width=3072,
    route_scale=2.5,
    index_topk=1024,
    compress_ratios=(128, 128, *(4, 128) * 29, 4, 0),
    param_dtype="bfloat16",
    compute_dtype="bfloat16",
)
_TINY = DeepseekV4Config(
    vocab_size=64,
    num_layers=4,
    width=32,
    num_heads=4,
    head_dim=16,
    rotary_dim=4,
    query_rank=24,
    output_groups=2,
    output_rank=8,
    local_window=8,
    compress_ratios=(0, 4, 128, 4, 0),
    index_heads=2,
    index_dim=8,
    index_topk=3,
    num_experts=4,
    experts_per_token=2,
    expert_width=16,
    route_scale=1.5,
    num_hash_layers=1,
    yarn=Yarn(original_length=64),
)

# A Base model is the same architecture; its checkpoint stores the experts in another format.
PRESETS = {
    "deepseek_v4_flash": _FLASH,
    "deepseek_v4_flash_base": _FLASH,
    "deepseek_v4_pro": _PRO,
    "deepseek_v4_pro_base": _PRO,
    "deepseek_v4_tiny": _TINY,
}


def preset(name: str) -> DeepseekV4Config:
    """The configuration of a named model.

    Raises:
        ValueError: if no model has this name.
    """
    if name not in PRESETS:
        raise ValueError(f"name={name!r} is no DeepSeek-V4 preset: {nearest(name, PRESETS)}")
    return PRESETS[name]
