# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What all laptop runs share: a tiny Qwen3 and the record lookup, learned by one of two recipes.

Two layers of width 64 with 4 query heads and 1 KV head of 16, untied, without a sink; 20 records
in 113 tokens, 32 keys and 32 values, residues modulo 24.

After the long recipe windows of 2 answer at nearly every phase, so the short one, which stops
before that, is for strides up to 4. Each has a control of its own.
"""

from typing import Any

from ml_collections import ConfigDict, config_dict

from phasejax.training.config import RunConfig

SHARED: dict[str, Any] = {
    "seed": 0,
    "recipe": "long",
    "num_layers": 2,
    "width": 64,
    "num_heads": 4,
    "num_kv_heads": 1,
    "head_dim": 16,
    "mlp_width": 192,
    "attention": "compressed",
    "rope_theta": 10_000.0,
    "tie_embeddings": False,
    "init_std": None,
    "embed_std": 1.0,
    "num_keys": 32,
    "num_values": 32,
    "curriculum": ((2, 8, 8, 1200), (5, 16, 33, 300), (10, 32, 33, 200)),
    "final_steps": 250,
    "advance_accuracy": 0.8,
    "eval_documents": 256,
}


def laptop(name: str, **changes: Any) -> ConfigDict:
    """The configuration of a laptop run: the shared one with some fields changed."""
    flat = RunConfig.from_flat({"name": name, **SHARED, **changes}).flat()
    optional = {"stride": int, "span": int, "init_std": float}
    values = {
        key: config_dict.placeholder(optional[key]) if key in optional and value is None else value
        for key, value in flat.items()
    }
    values["curriculum"] = tuple(tuple(stage) for stage in flat["curriculum"])
    return ConfigDict(values)


def short(name: str, **changes: Any) -> ConfigDict:
    """A run of a small stride, or its control: fewer steps before and in the final stage."""
    curriculum = ((2, 8, 8, 1200), (10, 32, 33, 100))
    return laptop(name, recipe="short", curriculum=curriculum, final_steps=150, **changes)


def separated(name: str, **changes: Any) -> ConfigDict:
    """A run of the series with filler tokens between key and value.

    16 records in a longer context: with 3 fillers 20 would not fit, and the fewer records are left
    after the demonstrations, the more of them are answered by elimination.
    """
    return laptop(
        name,
        recipe="separated",
        num_records=16,
        context=153,
        curriculum=((2, 12, 12, 1200), (6, 33, 33, 300)),
        final_steps=300,
        **changes,
    )
