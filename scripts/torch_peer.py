# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The same training step in plain eager PyTorch, for the benchmark to compare with."""

import importlib
import importlib.util
import math
import time
from typing import Any

import numpy as np

from phasejax.tasks.record_lookup import Prompts
from phasejax.training.config import RunConfig

# What the step below computes; it would time anything else wrongly.
WRITTEN: dict[str, Any] = {
    "attention": "compressed",
    "gate": "scalar",
    "gate_bias": True,
    "tie_kv": False,
    "post_norm": False,
    "exact_tokens": "window",
    "rope_fraction": 1.0,
    "qk_norm": True,
    "sink": False,
    "tie_embeddings": False,
    "param_dtype": "float32",
    "compute_dtype": "float32",
}


def check(config: RunConfig) -> None:
    """Checks that the peer can be timed, before anything is.

    Raises:
        ValueError: naming the field, if the run is not of the kind that is written here, or saying
            how to install PyTorch.
    """
    model = config.model
    wanted = WRITTEN | {"stride": model.window}
    found = {name: getattr(model, name) for name in WRITTEN} | {"stride": model.geometry.stride}
    for name, value in wanted.items():
        if found[name] != value:
            raise ValueError(
                f"{name}={found[name]!r}, but --compare=torch times only {name}={value!r}: choose"
                " such a config, or leave --compare out."
            )
    if importlib.util.find_spec("torch") is None:
        raise ValueError("--compare=torch needs PyTorch: pip install torch.")


def torch_step_seconds(config: RunConfig, prompts: Prompts, *, repeats: int) -> dict[str, Any]:
    """Median seconds of a step by microbatch, for a W = S, scalar-gate model as one would write it.

    Dense masked attention, all positions through all layers, AdamW, accumulated microbatches.

    Raises:
        ValueError: if PyTorch is missing, or the run is not of the kind that is written here.
    """
    check(config)
    torch = importlib.import_module("torch")
    functional = importlib.import_module("torch.nn.functional")
    model, task = config.model, config.task
    torch.manual_seed(0)
    torch.set_num_threads(1)
    d, n, k, h, w = model.width, model.num_heads, model.num_kv_heads, model.head_dim, model.window

    def matrix(*shape: int) -> Any:
        return torch.nn.Parameter(torch.randn(*shape) / math.sqrt(shape[-2]))

    def layer() -> dict[str, Any]:
        shapes = {"q": (d, n * h), "k": (d, k * h), "v": (d, k * h), "o": (n * h, d)}
        shapes |= {"gate": (d, model.mlp_width), "up": (d, model.mlp_width)}
        shapes |= {"down": (model.mlp_width, d), "ck": (w, d, k * h), "cv": (w, d, k * h)}
        shapes |= {"zk": (w, d, k), "zv": (w, d, k), "bk": (w, k), "bv": (w, k)}
        return {name: matrix(*shape) for name, shape in shapes.items()}

    layers = [layer() for _ in range(model.num_layers)]
    embed, head = matrix(model.vocab_size, d), matrix(d, model.vocab_size)
    parameters = [embed, head] + [p for one in layers for p in one.values()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01)
    tokens = torch.from_numpy(prompts.tokens.astype(np.int64))
    answers = torch.from_numpy(prompts.answers.astype(np.int64))
    queries = torch.from_numpy(task.query_positions.astype(np.int64))
    length = task.prompt_length
    entries = length // w
    at, end = torch.arange(length)[:, None], (torch.arange(entries) + 1) * w - 1
    near = (torch.arange(length) <= at) & (torch.arange(length) > at - model.local_window)
    mask = torch.cat([near, end <= at], 1)
    half = h // 2
    frequency = model.rope_theta ** -(torch.arange(half) / half)

    def norm(x: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + model.norm_eps)

    def rotate(x: Any, position: Any) -> Any:
        angle = position[:, None, None] * frequency
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    def forward(batch: Any) -> Any:
        x = embed[batch]
        for p in layers:
            y = norm(x)
            windows = y[:, : entries * w].reshape(len(y), entries, w, d)
            pooled = []
            for gate, bias, payload in (("zk", "bk", "ck"), ("zv", "bv", "cv")):
                score = torch.einsum("bewd,wdk->bewk", windows, p[gate]) + p[bias]
                weight = score.softmax(2)
                value = torch.einsum("bewd,wdc->bewc", windows, p[payload])
                value = value.reshape(*value.shape[:3], k, h)
                pooled.append((weight[..., None] * value).sum(2))
            q = rotate(norm((y @ p["q"]).reshape(len(y), length, n, h)), at[:, 0])
            local = rotate(norm((y @ p["k"]).reshape(len(y), length, k, h)), at[:, 0])
            keys = torch.cat([local, rotate(norm(pooled[0]), end - w + 1)], 1)
            values = torch.cat([(y @ p["v"]).reshape(len(y), length, k, h), pooled[1]], 1)
            mixed = functional.scaled_dot_product_attention(
                q.transpose(1, 2),
                keys.transpose(1, 2).repeat_interleave(n // k, 1),
                values.transpose(1, 2).repeat_interleave(n // k, 1),
                attn_mask=mask,
            )
            x = x + mixed.transpose(1, 2).reshape(len(y), length, n * h) @ p["o"]
            y = norm(x)
            x = x + (functional.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]
        return (norm(x) @ head)[:, queries]

    def step(size: int) -> None:
        optimizer.zero_grad()
        for first in range(0, len(tokens), size):
            logits = forward(tokens[first : first + size])
            answer = answers[first : first + size].reshape(-1)
            loss = functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), answer)
            (loss * size / len(tokens)).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    seconds = {}
    for size in sorted({min(size, len(tokens)) for size in (4, 8, 16, len(tokens))}):
        step(size)
        times = []
        for _ in range(max(3, repeats // 2)):
            began = time.perf_counter()
            step(size)
            times.append(time.perf_counter() - began)
        seconds[str(size)] = sorted(times)[len(times) // 2]
    return {"version": torch.__version__, "seconds_by_microbatch": seconds}
