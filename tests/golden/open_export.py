# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Opens what phasejax exports with transformers, and compares logits, in float32 on a CPU.

    pip install torch 'transformers==5.23.*' && python -m tests.golden.open_export

`to_hf` exports each configuration of the golden files, and `scripts.convert_checkpoint` one more
that is quantised as the released checkpoints are; both in both spellings. transformers opens each
directory by `AutoModelForCausalLM.from_pretrained`, where every tensor has to find its place. Its
top-k is made stable, as in make_deepseek_v4.py. Exits with 1 if a largest difference exceeds
1e-5 of the largest logit.
"""

import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import jax.numpy as jnp
import numpy as np
import torch
import transformers
from flax import nnx

from phasejax.checkpoints import from_hf, to_hf
from phasejax.checkpoints.deepseek_v4_config import read_config, write_config
from phasejax.checkpoints.quantization import quantize_fp4, quantize_fp8
from phasejax.checkpoints.shard_writer import write_shards
from phasejax.models.deepseek_v4.config import DeepseekV4Config
from phasejax.models.deepseek_v4.decoder import DeepseekV4
from tests.golden import fill, filled
from tests.golden.make_deepseek_v4 import CASES, HERE, stable_topk

LAYOUTS = ("released", "transformers")
TOLERANCE = 1e-5
run = nnx.jit(lambda model, tokens: model(tokens))


def theirs(directory: Path, tokens: np.ndarray) -> np.ndarray:
    """Logits of what transformers opens; every tensor must have found its place."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, output_loading_info=True
    )
    wrong = {name: found for name, found in info.items() if found}
    if wrong:
        raise ValueError(f"{directory} does not fit: {wrong}")
    with mock.patch("torch.topk", stable_topk), mock.patch("torch.Tensor.topk", stable_topk):
        return model.eval()(torch.from_numpy(tokens).long(), use_cache=False).logits.numpy()


def compare(name: str, directory: Path, model: DeepseekV4, tokens: np.ndarray) -> bool:
    """Prints the largest relative difference; whether it is small enough."""
    ours, other = np.asarray(run(model, jnp.asarray(tokens))), theirs(directory, tokens)
    error = np.abs(ours - other).max() / np.abs(other).max()
    same = (ours.argmax(-1) == other.argmax(-1)).all()
    sys.stdout.write(f"{name}: {error:.1e}{'' if same else ', another argmax'}\n")
    return bool(error <= TOLERANCE and same)


def write_quantised(config: DeepseekV4Config, directory: Path) -> None:
    """Writes a checkpoint with fp4 experts and fp8 projections, in the released spelling."""
    tensors = {}
    for name, x in filled.tensors(config).items():
        scale = None
        if ".experts." in name:
            x, scale = quantize_fp4(x)
        elif "shared_experts" in name or name.endswith(("wq_a.weight", "wo_b.weight")):
            x, scale = quantize_fp8(x)
        tensors[name] = x
        if scale is not None:
            tensors[name.replace(".weight", ".scale")] = scale
    write_shards(directory, tensors.items())
    (directory / "config.json").write_text(json.dumps(write_config(config)))


def main() -> int:
    """Opens every directory; the number of those that differ."""
    torch.set_grad_enabled(False)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    failed = 0
    for case, (_, length) in CASES.items():
        written = json.loads((HERE / f"{case}.json").read_text())["config"]
        config = dataclasses.replace(read_config(written), clamp_shared=True)
        tokens, model = fill.tokens(length, config.vocab_size), filled.model(config)
        with tempfile.TemporaryDirectory() as folder:
            for layout in LAYOUTS:
                directory = Path(folder) / layout
                to_hf(model, directory, layout=layout)
                failed += not compare(f"to_hf, {case}, {layout}", directory, model, tokens)
            if case != "every_layer":
                continue
            source = Path(folder) / "quantised"
            write_quantised(config, source)
            model = from_hf(source, clamp_shared=True)
            for layout in LAYOUTS:
                directory = Path(folder) / f"converted_{layout}"
                command = [sys.executable, "-m", "scripts.convert_checkpoint", f"--source={source}"]
                command += [f"--destination={directory}", f"--layout={layout}", "--dtype=float32"]
                subprocess.run(command, check=True)
                name = f"convert_checkpoint, {case} in fp8 and fp4, {layout}"
                failed += not compare(name, directory, model, tokens)
    return failed


if __name__ == "__main__":
    sys.exit(main() > 0)
