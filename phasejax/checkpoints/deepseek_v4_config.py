# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The config.json of a DeepSeek-V4 checkpoint, in its two spellings.

The released one is flat: a ratio for each layer, and one YaRN section. The package transformers
(5.23) writes kinds of layers instead, and a section for each of the two rotations.
"""

import math
import re
import warnings
from collections.abc import Mapping
from numbers import Real
from typing import Any

from phasejax.checkpoints.quantization import FP8_BLOCK
from phasejax.models.deepseek_v4.config import DeepseekV4Config
from phasejax.models.deepseek_v4.rope import Yarn

# Our field: theirs, where the meaning is the same.
FIELDS = {
    "vocab_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "width": "hidden_size",
    "num_heads": "num_attention_heads",
    "head_dim": "head_dim",
    "query_rank": "q_lora_rank",
    "output_groups": "o_groups",
    "output_rank": "o_lora_rank",
    "local_window": "sliding_window",
    "index_heads": "index_n_heads",
    "index_dim": "index_head_dim",
    "index_topk": "index_topk",
    "num_experts": "n_routed_experts",
    "experts_per_token": "num_experts_per_tok",
    "expert_width": "moe_intermediate_size",
    "route_scale": "routed_scaling_factor",
    "swiglu_limit": "swiglu_limit",
    "streams": "hc_mult",
    "sinkhorn_iterations": "hc_sinkhorn_iters",
    "hyper_eps": "hc_eps",
    "norm_eps": "rms_norm_eps",
}
FLAT = FIELDS | {
    "rotary_dim": "qk_rope_head_dim",
    "num_hash_layers": "num_hash_layers",
    "rope_theta": "rope_theta",
    "compress_rope_theta": "compress_rope_theta",
}
YARN = {
    "factor": "factor",
    "original_length": "original_max_position_embeddings",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "attention_factor": "attention_factor",
}
ROPE_KEYS = {*YARN.values(), "type", "rope_type", "rope_theta", "partial_rotary_factor"}
# What a DeepseekV4 always is; a config that says otherwise is of another model.
ALWAYS = {
    "model_type": "deepseek_v4",
    "scoring_func": "sqrtsoftplus",
    "norm_topk_prob": True,
    "hidden_act": "silu",
    "n_shared_experts": 1,
    "num_key_value_heads": 1,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
}
# What only configs of V4.1 have, beside its model_type and its ratios.
V41_KEYS = ("text_config", "kv_source_layer_ids", "index_source_layer_ids")
RATIOS = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
WORDS = {int: "a whole number", Real: "a number", list: "a list", dict: "an object"}
RATIO_OF_KIND = {"sliding_attention": 0} | RATIOS


def read_config(text: Mapping[str, Any], **changes: Any) -> DeepseekV4Config:
    """The configuration that a parsed config.json describes.

    Args:
        text: the file's content.
        **changes: fields of `DeepseekV4Config` that the file does not decide, such as dtypes.

    Raises:
        ValueError: naming a key that is missing, contradicts another one or belongs to a model
            that is not built here.
    """
    if _is_v41(text):
        raise ValueError(
            "This is a checkpoint of DeepSeek-V4.1. Its attention is built here, but not its engram"
            " memory, single-pass hyper-connections and vision tower: load a DeepSeek-V4 one."
        )
    for key, value in ALWAYS.items():
        if text.get(key, value) != value:
            raise ValueError(
                f"{key}={text[key]!r} in config.json, but DeepSeek-V4 is built with {value!r} only."
            )
    layers = _need(text, "num_hidden_layers", int)
    if "layer_types" in text:
        fields = {ours: _need(text, theirs) for ours, theirs in FIELDS.items()}
        fields |= _from_kinds(text, layers) | _from_sections(text)
    else:
        fields = {ours: _need(text, theirs) for ours, theirs in FLAT.items()}
        fields["compress_ratios"] = tuple(_need(text, "compress_ratios", list))
        name = "rope_scaling" if text.get("rope_scaling") else "rope_parameters"
        fields["yarn"] = _yarn(_need(text, name, dict) if text.get(name) else {}, 1.0)
    try:
        return DeepseekV4Config(**fields | changes)
    except ValueError as error:  # the names are ours
        spelled = [
            f"{ours} is {theirs}"
            for ours, theirs in FLAT.items()
            if ours != theirs and re.search(rf"\b{ours}=", str(error))
        ]
        raise ValueError(f"{error} In config.json, {', '.join(spelled) or 'mend it'}.") from error


def _is_v41(text: Mapping[str, Any]) -> bool:
    names = [text.get("model_type"), *(text.get("architectures") or ())]
    plain = [re.sub("[^a-z0-9]", "", str(name).lower()) for name in names]
    ratios = text.get("compress_ratios")
    return (
        any(name.startswith("deepseekv41") for name in plain)
        or any(key in text for key in V41_KEYS)
        or (isinstance(ratios, list) and (1 in ratios or 2 in ratios))
    )


def fp8_block(text: Mapping[str, Any]) -> tuple[int, int]:
    """Rows and columns that share a scale of the checkpoint's fp8 weights.

    Raises:
        ValueError: if config.json states something else there.
    """
    quantization = _need(text, name, dict) if text.get(name := "quantization_config") else {}
    block = quantization.get("weight_block_size", FP8_BLOCK)
    whole = isinstance(block, list | tuple) and [type(n) for n in block] == [int, int]
    if not whole or min(block) < 1:
        raise ValueError(
            f"weight_block_size={block!r} in config.json, but it must be two whole numbers from 1"
            f" on, such as {list(FP8_BLOCK)}: mend it."
        )
    return block[0], block[1]


def write_config(config: DeepseekV4Config) -> dict[str, Any]:
    """A flat config.json, which transformers reads too.

    Dtypes and switches of rounding and clamping are not part of it.

    Raises:
        ValueError: if the model has what only V4.1 has.
    """
    kinds = {ratio: kind for kind, ratio in RATIO_OF_KIND.items()}
    shared = (config.kv_sources, config.index_sources, config.candidate_source)
    if not set(config.compress_ratios) <= set(kinds) or any(s is not None for s in shared):
        raise ValueError(
            f"compress_ratios={config.compress_ratios} or shared entries are not DeepSeek-V4's, and"
            " its config.json has no words for them: use ratios 0, 4 and 128 and no sources."
        )
    if not config.query_head_norm:
        raise ValueError("query_head_norm=False is not DeepSeek-V4's: set it to True.")
    text: dict[str, Any] = {"architectures": ["DeepseekV4ForCausalLM"]} | ALWAYS
    text |= {theirs: getattr(config, ours) for ours, theirs in FLAT.items()}
    text["compress_ratios"] = list(config.compress_ratios)
    text["num_nextn_predict_layers"] = 0  # draft layers are not built
    text["torch_dtype"] = config.param_dtype
    if config.yarn is not None:
        values = {theirs: getattr(config.yarn, ours) for ours, theirs in YARN.items()}
        text["rope_scaling"] = {"type": "yarn"} | values
    return text


def _need(text: Mapping[str, Any], key: str, kind: type | None = None) -> Any:
    if key not in text:
        raise ValueError(f"config.json has no {key!r}: add it, its value is a model's own.")
    value = text[key]
    if kind is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise ValueError(f"{key}={value!r} in config.json, but it must be {WORDS[kind]}: mend it.")
    return value


def _from_kinds(text: Mapping[str, Any], layers: int) -> dict[str, Any]:
    kinds, routing = (_need(text, key, list) for key in ("layer_types", "mlp_layer_types"))
    for name, values in (("layer_types", kinds), ("mlp_layer_types", routing)):
        if len(values) != layers:
            raise ValueError(
                f"{name} has {len(values)} entries for num_hidden_layers={layers}: give each layer"
                " one."
            )
    if unknown := [kind for kind in kinds if kind not in list(RATIO_OF_KIND)]:
        raise ValueError(f"layer_types holds {unknown}, but known are {sorted(RATIO_OF_KIND)}.")
    if text.get("compress_rates", RATIOS) != RATIOS:
        raise ValueError(
            f"compress_rates={text['compress_rates']}, but DeepSeek-V4's are {RATIOS}."
        )
    hashed = routing.count("hash_moe")
    if routing != ["hash_moe"] * hashed + ["moe"] * (layers - hashed):
        raise ValueError(f"mlp_layer_types={routing}, but known are hash_moe first, and then moe.")
    ratios = [RATIO_OF_KIND[kind] for kind in kinds]
    if "compress_ratios" in text and _need(text, "compress_ratios", list)[:layers] != ratios:
        raise ValueError(
            f"compress_ratios={text['compress_ratios']}, but layer_types={kinds}: they contradict"
            " each other, so remove the wrong one."
        )
    return {"compress_ratios": tuple(ratios), "num_hash_layers": hashed}


def _from_sections(text: Mapping[str, Any]) -> dict[str, Any]:
    sections = _need(text, "rope_parameters", dict)
    main, compress = _need(sections, "main", dict), _need(sections, "compress", dict)
    if main.get("rope_type", "default") != "default":
        raise ValueError(f"rope_parameters.main={main}, but layers of ratio 0 have no YaRN.")
    rotated, dim = _need(compress, "partial_rotary_factor", Real), _need(text, "head_dim", int)
    if main.get("partial_rotary_factor") != rotated:
        raise ValueError(
            f"rope_parameters rotates {main.get('partial_rotary_factor')} of a head in main and"
            f" {rotated} in compress, but all layers rotate the same part."
        )
    if dim * rotated % 1:
        raise ValueError(
            f"partial_rotary_factor={rotated} of head_dim={dim} is no whole number of channels:"
            " mend either."
        )
    factor = 1.0
    if compress.get("rope_type") == "yarn" and compress.get("attention_factor") is None:
        if _need(compress, "factor", Real) <= 0:
            raise ValueError(f"factor={compress['factor']}, but YaRN needs a positive factor.")
        factor = 0.1 * math.log(compress["factor"]) + 1
        warnings.warn(
            f"rope_parameters.compress has no attention_factor, which transformers reads as"
            f" {factor:.4f} and the released models do not have: set it to 1.0 if this is theirs.",
            stacklevel=5,
        )
    return {
        "rotary_dim": int(dim * rotated),
        "rope_theta": _need(main, "rope_theta"),
        "compress_rope_theta": _need(compress, "rope_theta"),
        "yarn": _yarn(compress, factor),
    }


def _yarn(section: Mapping[str, Any], attention_factor: float) -> Yarn | None:
    kind = section.get("rope_type", section.get("type", "default"))
    if kind == "default":
        return None
    unknown = sorted(set(section) - ROPE_KEYS)
    if kind != "yarn" or unknown:
        raise ValueError(
            f"The rotation is scaled by {dict(section)}, but known is type yarn with"
            f" {sorted(ROPE_KEYS)}{f', not {unknown}' if unknown else ''}."
        )
    for key in ("factor", "original_max_position_embeddings"):
        _need(section, key)
    fields: dict[str, Any] = {"attention_factor": attention_factor}
    fields |= {o: section[theirs] for o, theirs in YARN.items() if section.get(theirs) is not None}
    return Yarn(**fields)
