# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What checkpoints of DeepSeek-V4 call the parameters of `DeepseekV4`, in two spellings.

"released" is DeepSeek's own; "transformers" is what that package's `save_pretrained` writes (5.23):
the same names after "model.", but for a few. Both store the same arrays: nothing is transposed, the
routed experts are one tensor each, and the output projection's groups are one matrix.
"""

from typing import Literal, get_args

Layout = Literal["released", "transformers"]

# A star stands for the number of a routed expert; these arrays are stacks of the named tensors.
TOP = {
    "embed": "embed.weight",
    "collapse.weight": "hc_head_fn",
    "collapse.base": "hc_head_base",
    "collapse.scale": "hc_head_scale",
    "norm.weight": "norm.weight",
    "head.weight": "head.weight",
}
BLOCK = {
    "attention_streams.weight": "hc_attn_fn",
    "attention_streams.base": "hc_attn_base",
    "attention_streams.scale": "hc_attn_scale",
    "attention_norm.weight": "attn_norm.weight",
    "attention.sink": "attn.attn_sink",
    "attention.query_down.weight": "attn.wq_a.weight",
    "attention.query_norm.weight": "attn.q_norm.weight",
    "attention.query_up.weight": "attn.wq_b.weight",
    "attention.kv.weight": "attn.wkv.weight",
    "attention.kv_norm.weight": "attn.kv_norm.weight",
    "attention.output_down": "attn.wo_a.weight",
    "attention.output_up.weight": "attn.wo_b.weight",
    "attention.compressor.value.weight": "attn.compressor.wkv.weight",
    "attention.compressor.gate.weight": "attn.compressor.wgate.weight",
    "attention.compressor.bias": "attn.compressor.ape",
    "attention.compressor.norm.weight": "attn.compressor.norm.weight",
    "attention.indexer.query_up.weight": "attn.indexer.wq_b.weight",
    "attention.indexer.head_weights.weight": "attn.indexer.weights_proj.weight",
    "attention.indexer.compressor.value.weight": "attn.indexer.compressor.wkv.weight",
    "attention.indexer.compressor.gate.weight": "attn.indexer.compressor.wgate.weight",
    "attention.indexer.compressor.bias": "attn.indexer.compressor.ape",
    "attention.indexer.compressor.norm.weight": "attn.indexer.compressor.norm.weight",
    "attention.indexer.latent.key.weight": "attn.indexer.wk.weight",
    "attention.indexer.latent.norm.weight": "attn.indexer.k_norm.weight",
    "moe_streams.weight": "hc_ffn_fn",
    "moe_streams.base": "hc_ffn_base",
    "moe_streams.scale": "hc_ffn_scale",
    "moe_norm.weight": "ffn_norm.weight",
    "moe.router.gate.weight": "ffn.gate.weight",
    "moe.router.bias": "ffn.gate.bias",
    "moe.router.table": "ffn.gate.tid2eid",
    "moe.experts.gate": "ffn.experts.*.w1.weight",
    "moe.experts.up": "ffn.experts.*.w3.weight",
    "moe.experts.down": "ffn.experts.*.w2.weight",
    "moe.shared.gate.weight": "ffn.shared_experts.w1.weight",
    "moe.shared.up.weight": "ffn.shared_experts.w3.weight",
    "moe.shared.down.weight": "ffn.shared_experts.w2.weight",
}
# How transformers spells what it does not call "model." and the released name.
TRANSFORMERS = {
    "embed": "model.embed_tokens.weight",
    "collapse.weight": "model.hc_head.hc_fn",
    "collapse.base": "model.hc_head.hc_base",
    "collapse.scale": "model.hc_head.hc_scale",
    "head.weight": "head.weight",
    "attention.kv_norm.weight": "attn.norm.weight",
}
# Draft layers, which no `DeepseekV4` has: their tensors are known and not read.
DRAFT = ("mtp.", "model.mtp.")


def check_layout(layout: str) -> None:
    """Refuses what is no spelling.

    Raises:
        ValueError: naming it.
    """
    if layout not in get_args(Layout):
        raise ValueError(f"layout={layout!r} is none of {', '.join(get_args(Layout))}: choose one.")


def tensor_name(path: tuple[str | int, ...], layout: Layout) -> str:
    """The tensor that holds the parameter at a path of the model's state.

    Args:
        path: keys from the model to the parameter, such as ("blocks", 0, "attention", "sink").
        layout: the spelling.

    Returns:
        The name; one with a star stands for as many tensors as there are experts.
    """
    names, prefix = TOP, ""
    if path[0] == "blocks":
        names, prefix, path = BLOCK, f"layers.{path[1]}.", path[2:]
    key = ".".join(map(str, path))
    if layout == "released":
        return prefix + names[key]
    if names is TOP and key in TRANSFORMERS:
        return TRANSFORMERS[key]
    return "model." + prefix + (names[key] if names is TOP else TRANSFORMERS.get(key, names[key]))
