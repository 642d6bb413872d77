# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""config.json in both spellings: the released values, and contradictions that are refused."""

import dataclasses
import json
import warnings
from pathlib import Path

import pytest

from phasejax.checkpoints.deepseek_v4_config import fp8_block, read_config, write_config
from phasejax.models.deepseek_v4.presets import preset
from phasejax.models.deepseek_v4.rope import Yarn

GOLDEN = Path(__file__).parents[1] / "golden/deepseek_v4"
FLASH = {
    "model_type": "deepseek_v4",
    "vocab_size": 129280,
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1024,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "num_hash_layers": 3,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "swiglu_limit": 10.0,
    "sliding_window": 128,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "max_position_embeddings": 1048576,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "tie_word_embeddings": False,
    "num_nextn_predict_layers": 1,
}
PRO = FLASH | {
    "hidden_size": 7168,
    "moe_intermediate_size": 3072,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "o_groups": 16,
    "n_routed_experts": 384,
    "routed_scaling_factor": 2.5,
    "index_topk": 1024,
    "compress_ratios": [128, 128, *[4, 128] * 29, 4, 0],
}
BFLOAT16 = {"param_dtype": "bfloat16", "compute_dtype": "bfloat16"}


def nested(**compress) -> dict:
    """What transformers writes for a small model, with another section for compressed layers."""
    text = json.loads((GOLDEN / "nested_yarn.json").read_text())["config"]
    section = text["rope_parameters"]["compress"] | compress
    text["rope_parameters"]["compress"] = {k: v for k, v in section.items() if v is not None}
    return text


def quiet(text: dict):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return read_config(text)


@pytest.mark.parametrize(("name", "text"), [("flash", FLASH), ("pro", PRO)])
def test_the_released_values_are_the_presets(name, text):
    config = read_config(text, **BFLOAT16)
    assert config == preset(f"deepseek_v4_{name}")
    assert config.yarn.attention_factor == 1.0
    assert read_config(write_config(config), **BFLOAT16) == config


@pytest.mark.parametrize("case", ["every_layer", "no_yarn", "clamped"])
def test_what_transformers_writes(case):
    config = quiet(json.loads((GOLDEN / f"{case}.json").read_text())["config"])
    assert (config.rotary_dim, config.num_experts, config.index_dim) == (4, 4, 8)
    if case == "every_layer":
        assert config.compress_ratios == (0, 4, 128, 4) and config.num_hash_layers == 1
        assert config.yarn == Yarn(original_length=64) and config.compress_rope_theta == 160_000
    if case == "no_yarn":
        assert config.yarn is None and config.num_hash_layers == 0
    if case == "clamped":
        assert (config.streams, config.sinkhorn_iterations, config.route_scale) == (2, 3, 2.5)


def test_the_attention_factor_of_nested_sections():
    with pytest.warns(UserWarning, match=r"which transformers reads as 1\.2773 and the released"):
        assert abs(read_config(nested()).yarn.attention_factor - 1.2772588722239782) < 1e-12
    assert quiet(nested(attention_factor=1.0)).yarn.attention_factor == 1.0
    assert quiet(nested(rope_type="default")).yarn is None
    flat = FLASH | {"rope_scaling": FLASH["rope_scaling"] | {"attention_factor": 1.5}}
    assert quiet(flat).yarn.attention_factor == 1.5


def test_block_sizes():
    assert fp8_block(FLASH) == (128, 128)
    assert fp8_block({"quantization_config": {"weight_block_size": [32, 32]}}) == (32, 32)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FLASH | {"model_type": "deepseek_v41"}, "V4.1.*engram.*hyper-connections.*vision"),
        ({"model_type": "deepseek_v41", "text_config": {}}, "checkpoint of DeepSeek-V4.1"),
        (FLASH | {"model_type": "deepseek_v4.1"}, "checkpoint of DeepSeek-V4.1"),
        (FLASH | {"architectures": ["DeepseekV41ForCausalLM"]}, "checkpoint of DeepSeek-V4.1"),
        (FLASH | {"kv_source_layer_ids": [2, 8]}, "checkpoint of DeepSeek-V4.1"),
        (FLASH | {"compress_ratios": [0, 0, *[2] * 18, *[1] * 24]}, "checkpoint of DeepSeek-V4.1"),
        (FLASH | {"model_type": "llama"}, "model_type='llama' in config.json, but"),
        (FLASH | {"scoring_func": "sigmoid"}, "scoring_func='sigmoid' in config.json, but"),
        (FLASH | {"tie_word_embeddings": True}, "tie_word_embeddings=True in config.json"),
        ({k: v for k, v in FLASH.items() if k != "o_groups"}, "config.json has no 'o_groups'"),
        (FLASH | {"compress_ratios": [0, 4]}, "compress_ratios has 2 entries for num_layers=43"),
        (FLASH | {"compress_ratios": [8] * 43}, r"compress_ratios holds \[8\]"),
        (FLASH | {"compress_ratios": 4}, "compress_ratios=4 in config.json, but .* a list"),
        (FLASH | {"compress_ratios": None}, "compress_ratios=None in config.json"),
        (FLASH | {"num_hidden_layers": "43"}, "num_hidden_layers='43' in config.json, but it must"),
        (FLASH | {"num_hidden_layers": True}, "num_hidden_layers=True in config.json"),
        (FLASH | {"hidden_size": 0}, "width=0.* In config.json, width is hidden_size"),
        (FLASH | {"qk_rope_head_dim": 600}, "rotary_dim=600.*rotary_dim is qk_rope_head_dim"),
        (FLASH | {"rope_theta": 1}, "rope_theta=1, but it must be above 1"),
        (FLASH | {"rope_scaling": [16]}, r"rope_scaling=\[16\] in config.json, but .* an object"),
        (
            FLASH | {"rope_scaling": FLASH["rope_scaling"] | {"beta_slow": 64}},
            "beta_fast=32 is below beta_slow=64",
        ),
        (FLASH | {"rope_scaling": {"type": "linear", "factor": 2}}, "known is type yarn"),
        (FLASH | {"rope_scaling": {"type": "yarn", "factor": 2}}, "no 'original_max_position_emb"),
        (
            FLASH | {"rope_scaling": FLASH["rope_scaling"] | {"mscale": 2}},
            r"scaled by .*mscale.*, not \['mscale'\]",
        ),
        (nested(truncate=False, attention_factor=1.0), r"not \['truncate'\]"),
        (nested(attention_factor=1.0) | {"layer_types": ["moe"]}, "layer_types has 1 entries for"),
        (
            nested(attention_factor=1.0) | {"layer_types": ["moe", "sliding_attention"]},
            r"layer_types holds \['moe'\]",
        ),
        (
            nested(attention_factor=1.0) | {"mlp_layer_types": ["moe", "hash_moe"]},
            "hash_moe first, and then moe",
        ),
        (
            nested(attention_factor=1.0) | {"compress_rates": {"compressed_sparse_attention": 8}},
            "compress_rates=.*but DeepSeek-V4's are",
        ),
        (nested(factor=0), "factor=0, but YaRN needs a positive factor"),
        (nested(factor="16"), "factor='16' in config.json, but it must be a number"),
        (nested() | {"rope_parameters": [1]}, r"rope_parameters=\[1\] in config.json"),
        (nested() | {"head_dim": 17}, "partial_rotary_factor=0.5 of head_dim=17 is no whole"),
        (nested() | {"layer_types": None}, "layer_types=None in config.json"),
        (nested() | {"layer_types": [[], 3]}, r"layer_types holds \[\[\], 3\]"),
        (nested() | {"compress_ratios": [128, 128]}, "compress_ratios=.*they contradict each"),
        (nested(partial_rotary_factor=0.25), "rotates 0.5 of a head in main and 0.25 in compress"),
    ],
)
def test_contradictions_and_other_models_are_named(text, message):
    with pytest.raises(ValueError, match=message):
        read_config(text)


@pytest.mark.parametrize("block", [None, [128], [0, 128], [128.0, 128], "128", [True, 128]])
def test_a_block_that_is_none_is_named(block):
    with pytest.raises(ValueError, match="weight_block_size=.* two whole numbers from 1 on"):
        fp8_block({"quantization_config": {"weight_block_size": block}})
    with pytest.raises(ValueError, match="quantization_config='fp8' in config.json"):
        fp8_block({"quantization_config": "fp8"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(head_dim=69), "head_dim - rotary_dim = 65 channels in groups of 64"),
        (dict(head_dim=68, index_dim=48), "index_dim=48 in groups of 32"),
        (dict(head_dim=68, index_dim=96), "index_dim=96 with quantized=True.* power of two"),
    ],
)
def test_rounding_needs_whole_groups(changes, message):
    tiny = dataclasses.replace(preset("deepseek_v4_tiny"), index_dim=32)
    dataclasses.replace(tiny, quantized=True, head_dim=68)
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(tiny, quantized=True, **changes)


def test_what_has_no_config_json_is_refused():
    tiny = preset("deepseek_v4_tiny")
    for changes in (
        {"compress_ratios": (0, 2, 2, 1)},
        {"kv_sources": (1, 2, 3)},
    ):
        with pytest.raises(ValueError, match="its config.json has no words for them"):
            write_config(dataclasses.replace(tiny, **changes))
    with pytest.raises(ValueError, match="query_head_norm=False"):
        write_config(dataclasses.replace(tiny, query_head_norm=False))
