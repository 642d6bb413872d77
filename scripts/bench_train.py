# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Times a training step: its speed, what its FLOPs would cost at best, and what surrounds it.

    python -m scripts.bench_train --json=docs/results/bench_train.json

On one core: the step of the laptop's W8/S8 run, a plain float32 matrix product in the same
process, the generation of a batch, and the compilation. With --compare=torch (where PyTorch is
installed) also plain eager PyTorch on a model of the same layers with dense masked attention; with
--compare=dense this step itself with dense masked attention, the two in turns.
"""

import functools
import os
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

from absl import flags

from phasejax.training.config import RunConfig
from scripts import config_flag, running, torch_peer
from scripts.timing import median_seconds, medians_in_turns

_CONFIG = config_flag.define_config_flag("configs/laptop/w8s8.py")
_JSON = flags.DEFINE_string("json", None, "File to write the numbers to.")
_COMPARE = flags.DEFINE_enum(
    "compare", None, ["dense", "torch"], "Also time a peer in the same run."
)
_REPEATS = flags.DEFINE_integer("repeats", 20, "Timed calls; the median is kept.", lower_bound=3)


def step_flops(config: RunConfig) -> float:
    """Multiply-adds of one step counted by hand, times two, backward twice the forward.

    Counts what is computed: in the last layer queries, MLP and head at the scored positions only.
    """
    model, task, train = config.model, config.task, config.train
    tokens, scored = task.prompt_length, task.num_queries
    heads, kv = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    grid, span = model.geometry, model.span
    compressed = model.attention == "compressed"
    entries = grid.num_entries(tokens) if compressed else 0
    branches = 1 if model.tie_kv else 2
    scores = {"scalar": model.num_kv_heads, "vector": kv, "uniform": 0}[model.gate]
    pool = entries * grid.window * branches * model.width * (kv + scores)
    near = 2 * span.size if span.size else tokens
    total = 0
    for layer in range(model.num_layers):
        last = layer == model.num_layers - 1
        rows = scored if last else tokens
        keys = (tokens if last else near) + entries
        total += tokens * model.width * kv * branches + pool
        total += rows * (2 * model.width * heads + 3 * model.width * model.mlp_width)
        total += rows * 2 * heads * keys
    total += scored * model.width * model.vocab_size
    return 2 * 3 * train.batch_size * total


def _with_dense_attention(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function that traces a model, its attention by the dense mask of the reference."""
    from pallas_kernels.compressed_attention import api
    from phasejax.models import attention

    dense = functools.partial(api.compressed_attention, implementation="reference")
    with mock.patch.object(attention, "compressed_attention", dense):
        return function(*args)


def _in_turns(calls: list[Callable[[], Any]], repeats: int) -> list[float]:
    """Median seconds of each of several calls, none of which meets a machine the others do not."""
    import jax

    def once(call: Callable[[], Any]) -> float:
        return median_seconds(lambda: jax.block_until_ready(call()), 1)

    return medians_in_turns([functools.partial(once, call) for call in calls], repeats)


def bench(config: RunConfig, *, repeats: int, compare: str | None) -> dict[str, Any]:
    """Measures and returns all numbers; pins the process to one core first."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import jax
    import jax.numpy as jnp

    from phasejax.evals.results import versions
    from phasejax.models.build import compiler_options, model_structure
    from phasejax.tasks.record_lookup import training_batch
    from phasejax.training.loop import initial_state, make_run_optimizer
    from phasejax.training.step import train_step

    task, train = config.task, config.train
    began = time.perf_counter()
    state = initial_state(config)
    jax.block_until_ready(state)
    init_seconds = time.perf_counter() - began

    def compile_step(*arguments: Any) -> Any:
        step = functools.partial(
            train_step, graph=model_structure(config.model), optimizer=make_run_optimizer(config)
        )
        return jax.jit(step, compiler_options=compiler_options(1)).lower(*arguments).compile()

    prompts = training_batch(task, train.batch_size, 0, 0)
    size = train.microbatch(task.prompt_length)
    host = [x.reshape(-1, size, x.shape[1]) for x in (prompts.tokens, prompts.answers)]
    arguments = (state, *host, jnp.asarray(task.query_positions), jnp.float32(1e-3))
    began = time.perf_counter()
    compiled = compile_step(*arguments)
    compile_seconds = time.perf_counter() - began
    on_device = (state, *jax.device_put(host), *arguments[3:])
    seconds = median_seconds(lambda: jax.block_until_ready(compiled(*on_device)), repeats)

    square = jnp.ones((1024, 1024), jnp.float32)
    product = jax.jit(jnp.matmul)
    matmul = median_seconds(lambda: product(square, square).block_until_ready(), repeats)
    rate = 2 * 1024**3 / matmul
    metrics = compiled(*on_device)[1]
    around = median_seconds(
        lambda: (
            jax.device_put(training_batch(task, train.batch_size, 0, 1).tokens).block_until_ready(),
            {name: float(value) for name, value in jax.device_get(metrics).items()},
        ),
        repeats,
    )
    flops = step_flops(config)
    result: dict[str, Any] = {
        "run": config.name,
        "tokens": train.batch_size * task.prompt_length,
        "step_seconds": seconds,
        "temporary_bytes": compiled.memory_analysis().temp_size_in_bytes,
        "gflop_counted": flops / 1e9,
        "matmul_gflops_per_second": rate / 1e9,
        "step_over_floor": seconds / (flops / rate),
        "surroundings_share": around / seconds,
        "init_seconds": init_seconds,
        "compile_seconds": compile_seconds,
        "versions": versions(),
    }
    if compare == "dense":
        dense = _with_dense_attention(compile_step, *arguments)
        calls: list[Callable[[], Any]] = [
            functools.partial(step, *on_device) for step in (compiled, dense)
        ]
        after, before = _in_turns(calls, repeats)
        result["dense"] = {
            "step_seconds": before,
            "step_seconds_in_turns": after,
            "temporary_bytes": dense.memory_analysis().temp_size_in_bytes,
        }
        result["speed_over_dense"] = before / after
    if compare == "torch":
        peer = torch_peer.torch_step_seconds(config, prompts, repeats=repeats)
        result["torch"] = peer
        for name, times in (("", "seconds"), ("_saving", "saving_seconds")):
            best = min(peer[f"{times}_by_microbatch"].values())
            result[f"speed_over_torch{name}"] = best / seconds
    return result


def show(result: dict[str, Any]) -> None:
    """Prints the numbers as a table."""
    numbers = {name: value for name, value in result.items() if isinstance(value, int | float)}
    for size, seconds in result.get("torch", {}).get("seconds_by_microbatch", {}).items():
        numbers[f"torch_seconds, microbatch {size}"] = seconds
    running.show_numbers(f"{result['run']}: one training step, one core", numbers)


def main(_: list[str]) -> None:
    """Maps flags to arguments."""
    config = config_flag.to_run_config(_CONFIG.value)
    running.check_json(_JSON.value)
    if _COMPARE.value == "torch":
        torch_peer.check(config)
    result = bench(config, repeats=_REPEATS.value, compare=_COMPARE.value)
    show(result)
    running.write_json(_JSON.value, result)


if __name__ == "__main__":
    running.run(main, first="config")
