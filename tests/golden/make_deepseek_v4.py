# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/deepseek_v4: what transformers' DeepSeek-V4 computes, in float32 on a CPU.

    pip install torch 'transformers==5.23.*' && python tests/golden/make_deepseek_v4.py

The tests need neither package. Each case is a configuration, the names and shapes that
`save_pretrained` writes for it, and logits of one prompt. Two things are changed in the package:
top-k becomes a stable descending sort, since ties would fall anywhere otherwise (the rows whose
selection was decided by a tie are recorded), and, for `unclamped_logits`, the shared expert does
not clamp, as in DeepSeek's own code. The script checks that the package agrees with itself: shorter
prompts and token-by-token decoding give the logits of the whole prompt.
"""

import json
import pathlib
import sys
import tempfile
from unittest import mock

import numpy as np
import safetensors.torch
import torch
import transformers
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as package

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import fill  # noqa: E402

HERE = pathlib.Path(__file__).parent / "deepseek_v4"
TINY = dict(
    vocab_size=48,
    hidden_size=32,
    moe_intermediate_size=16,
    num_hidden_layers=4,
    num_attention_heads=4,
    head_dim=16,
    q_lora_rank=24,
    num_experts_per_tok=2,
    n_routed_experts=4,
    o_groups=2,
    o_lora_rank=8,
    index_n_heads=2,
    index_head_dim=8,
    index_topk=3,
    sliding_window=8,
    compress_ratios=[0, 4, 128, 4, 0],
    num_hash_layers=1,
    qk_rope_head_dim=4,
    max_position_embeddings=1024,
)
YARN = dict(
    rope_type="yarn", factor=16, original_max_position_embeddings=64, beta_fast=32, beta_slow=1
)
NESTED = {
    "main": dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5),
    "compress": dict(rope_theta=160000.0, partial_rotary_factor=0.5, **YARN),
}
CASES = {  # name: changes to TINY, length of the prompt
    # Every kind of layer; far fewer entries are read than are visible.
    "every_layer": (dict(rope_parameters=YARN), 259),
    # No YaRN, every visible entry is read, compressed layers first, no hashed layer.
    "no_yarn": (
        dict(compress_ratios=[128, 4, 0], num_hidden_layers=2, num_hash_layers=0, index_topk=512),
        140,
    ),
    # The nested spelling without attention_factor, which the package reads as 0.1 ln(factor) + 1.
    "nested_yarn": (
        dict(
            rope_parameters=NESTED,
            partial_rotary_factor=0.5,
            compress_ratios=[4, 0],
            num_hidden_layers=2,
        ),
        65,
    ),
    # A clamp that binds, in routed and shared experts; other counts of streams and heads.
    "clamped": (
        dict(
            swiglu_limit=0.4,
            rope_parameters=YARN,
            compress_ratios=[4, 4],
            num_hidden_layers=2,
            hc_mult=2,
            hc_sinkhorn_iters=3,
            num_attention_heads=6,
            o_groups=3,
            index_n_heads=3,
            routed_scaling_factor=2.5,
        ),
        37,
    ),
}
tied_rows: list[int] = []


def stable_topk(x: torch.Tensor, k: int, dim: int = -1, **_: object) -> torch.return_types.topk:
    values, indices = torch.sort(x, dim=dim, descending=True, stable=True)
    if k < x.shape[-1] and x.ndim == 3:  # the indexer's scores
        tied = (values[..., k - 1] == values[..., k]) & torch.isfinite(values[..., k])
        tied_rows.extend(torch.nonzero(tied[0])[:, 0].tolist())
    return torch.return_types.topk((values[..., :k], indices[..., :k]))


def unclamped(self: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


def largest_difference(x: torch.Tensor, y: torch.Tensor) -> float:
    return float((x - y).abs().max() / y.abs().max())


def make(name: str, changes: dict, length: int) -> None:
    config = transformers.DeepseekV4Config(**{**TINY, **changes})
    with tempfile.TemporaryDirectory() as folder:
        transformers.DeepseekV4ForCausalLM(config).save_pretrained(folder)
        file = pathlib.Path(folder) / "model.safetensors"
        shapes = {key: tuple(x.shape) for key, x in safetensors.torch.load_file(file).items()}
        weights = {
            key: torch.from_numpy(fill.tensor(key, shape, config.n_routed_experts))
            for key, shape in shapes.items()
        }
        safetensors.torch.save_file(weights, file, metadata={"format": "pt"})
        model = transformers.DeepseekV4ForCausalLM.from_pretrained(folder).eval()
        written = json.loads((pathlib.Path(folder) / "config.json").read_text())
    prompt = torch.from_numpy(fill.tokens(length, config.vocab_size)).long()
    tied_rows.clear()
    logits = model(prompt, use_cache=False).logits
    arrays = {"logits": logits[0].numpy(), "tied": np.unique(tied_rows).astype(np.int32)}
    worst = 0.0
    for short in (1, 2, 3, 4, 7, 127, 128, 129, 255, 256, 257):
        if short < length:
            part = model(prompt[:, :short], use_cache=False).logits
            worst = max(worst, largest_difference(part, logits[:, :short]))
    cut = length - 8
    out = model(prompt[:, :cut], use_cache=True)
    steps = []
    for t in range(cut, length):
        out = model(prompt[:, t : t + 1], past_key_values=out.past_key_values, use_cache=True)
        steps.append(out.logits)
    decode = largest_difference(torch.cat(steps, 1), logits[:, cut:])
    if name == "clamped":
        with mock.patch.object(package.DeepseekV4MLP, "forward", unclamped):
            arrays["unclamped_logits"] = model(prompt, use_cache=False).logits[0].numpy()
    np.savez_compressed(HERE / f"{name}.npz", **arrays)
    text = {"config": written, "shapes": shapes}
    (HERE / f"{name}.json").write_text(json.dumps(text, separators=(",", ":")) + "\n")
    sys.stdout.write(
        f"{name}: logits to {float(logits.abs().max()):.3g}, {len(arrays['tied'])} of {length} rows"
        f" tied, shorter prompts differ by {worst:.1e}, decoding by {decode:.1e}\n"
    )
    assert max(worst, decode) < 1e-5


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    torch.set_grad_enabled(False)
    with mock.patch("torch.topk", stable_topk), mock.patch("torch.Tensor.topk", stable_topk):
        for case, (changes, length) in CASES.items():
            make(case, changes, length)
