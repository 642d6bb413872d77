# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""scripts.convert_checkpoint as a person calls it: quantised weights in, real numbers out."""

import json
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np

from phasejax.checkpoints.deepseek_v4_config import write_config
from phasejax.checkpoints.quantization import dequantize, quantize_fp8
from phasejax.checkpoints.shard_writer import write_shards
from phasejax.checkpoints.shards import Shards
from phasejax.models.deepseek_v4.presets import preset
from tests.golden.filled import tensors

ROOT = Path(__file__).parents[2]


def convert(env: dict, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "scripts.convert_checkpoint", *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_a_quantised_checkpoint_becomes_one_of_real_numbers(tmp_path, script_env):
    config = preset("deepseek_v4_tiny")
    held = tensors(config)
    weight, scale = quantize_fp8(held["layers.0.attn.wq_a.weight"])
    stored = held | {"layers.0.attn.wq_a.weight": weight, "layers.0.attn.wq_a.scale": scale}
    source, target = tmp_path / "source", tmp_path / "target"
    write_shards(source, stored.items())
    (source / "config.json").write_text(json.dumps(write_config(config)))
    arguments = (f"--source={source}", f"--destination={target}", "--layout=transformers")
    done = convert(script_env, *arguments, "--shard_gb=0.00002")
    assert done.returncode == 0, done.stderr
    written = Shards(target)
    assert len(list(target.glob("model-*.safetensors"))) > 1
    assert len(written) == len(held)
    np.testing.assert_array_equal(
        written["model.layers.0.attn.wq_a.weight"],
        dequantize(weight, scale, np.dtype(ml_dtypes.bfloat16)),
    )
    again = convert(script_env, *arguments)
    assert again.returncode == 2
    assert "already: write to an empty one" in again.stderr and "Traceback" not in again.stderr
