# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The same training step in plain eager PyTorch, for the benchmark to compare with."""

import importlib
import importlib.util
import math
from typing import Any

import numpy as np

from phasejax.tasks.record_lookup import Prompts
from phasejax.training.config import RunConfig
from scripts.timing import median_seconds

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

    Plain: dense masked attention, all positions through all layers, AdamW, accumulated
    microbatches. Saving: what phasejax saves too, in the last layer queries, MLP and head only at
    the scored positions, and local attention by blocks; its logits differ from the plain ones by
    the relative saving_differs_by.

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

    def attend(q: Any, keys: Any, values: Any, mask: Any) -> Any:
        """Grouped-query attention of q [..., R, n, h] over keys and values [..., C, k, h]."""
        mixed = functional.scaled_dot_product_attention(
            q.transpose(-3, -2),
            keys.transpose(-3, -2).repeat_interleave(n // k, -3),
            values.transpose(-3, -2).repeat_interleave(n // k, -3),
            attn_mask=mask,
        )
        return mixed.transpose(-3, -2).flatten(-2)

    block = model.local_window
    blocks = length // max(block, 1)

    def by_blocks(q: Any, keys: Any, values: Any) -> Any:
        """The same attention, each block of queries over two blocks of tokens and the entries."""

        def reach(x: Any) -> Any:
            tokens, pooled = x[:, :length], x[:, length:]
            own = tokens.reshape(len(x), blocks, block, k, h)
            before = functional.pad(own, (0, 0, 0, 0, 0, 0, 1, 0))[:, :-1]
            return torch.cat([before, own, pooled[:, None].expand(-1, blocks, -1, -1, -1)], 2)

        mixed = attend(
            q.reshape(len(q), blocks, block, n, h), reach(keys), reach(values), block_mask[:, None]
        )
        return mixed.reshape(len(q), length, n * h)

    place = torch.arange(blocks)[:, None, None] * block + torch.arange(block)[:, None]
    token = place[:, :1] - block + torch.arange(2 * block)
    block_mask = torch.cat(
        [(token <= place) & (token > place - block) & (token >= 0), end <= place], 2
    )

    def forward(batch: Any, saving: bool) -> Any:
        x = embed[batch]
        for p in layers:
            rows = queries if saving and p is layers[-1] else at[:, 0]
            y = norm(x)
            windows = y[:, : entries * w].reshape(len(y), entries, w, d)
            pooled = []
            for gate, bias, payload in (("zk", "bk", "ck"), ("zv", "bv", "cv")):
                score = torch.einsum("bewd,wdk->bewk", windows, p[gate]) + p[bias]
                weight = score.softmax(2)
                value = torch.einsum("bewd,wdc->bewc", windows, p[payload])
                value = value.reshape(*value.shape[:3], k, h)
                pooled.append((weight[..., None] * value).sum(2))
            some = y if len(rows) == length else y[:, rows]
            q = rotate(norm((some @ p["q"]).unflatten(-1, (n, h))), rows)
            local = rotate(norm((y @ p["k"]).reshape(len(y), length, k, h)), at[:, 0])
            keys = torch.cat([local, rotate(norm(pooled[0]), end - w + 1)], 1)
            values = torch.cat([(y @ p["v"]).reshape(len(y), length, k, h), pooled[1]], 1)
            if saving and p is not layers[-1]:
                mixed = by_blocks(q, keys, values)
            else:
                mixed = attend(q, keys, values, mask[rows])
            x = (x if len(rows) == length else x[:, rows]) + mixed @ p["o"]
            y = norm(x)
            x = x + (functional.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]
        logits = norm(x) @ head
        return logits if saving else logits[:, queries]

    def step(size: int, saving: bool) -> None:
        optimizer.zero_grad()
        for first in range(0, len(tokens), size):
            logits = forward(tokens[first : first + size], saving)
            answer = answers[first : first + size].reshape(-1)
            loss = functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), answer)
            (loss * size / len(tokens)).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    def median(size: int, saving: bool) -> float:
        return median_seconds(lambda: step(size, saving), max(3, repeats // 2))

    with torch.no_grad():
        plain, saved = (forward(tokens[:4], saving) for saving in (False, True))
    sizes = sorted({min(size, len(tokens)) for size in (4, 8, 16, len(tokens))})
    return {
        "version": torch.__version__,
        "seconds_by_microbatch": {str(n): median(n, False) for n in sizes},
        "saving_seconds_by_microbatch": {str(n): median(n, True) for n in sizes},
        "saving_differs_by": float((plain - saved).abs().max() / plain.abs().max()),
    }
