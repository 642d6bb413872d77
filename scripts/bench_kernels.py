# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Times the kernels' plain JAX paths and counts their memory, beside what they replace.

    python -m scripts.bench_kernels --suite=attention_cpu --json=docs/results/attention_cpu.json

Compressed attention with W8/S8 and a window of 16 in float32, forward and backward: against the
dense mask (T = 4096, 4 heads of 64), against full attention of `jax.nn` (T = 8192), and alone by
doublings of T up to 131072 with the heads of Qwen3-0.6B. Memory is what the compiler assigns; the
process's own is measured once beside it. Ten minutes on two cores.

    python -m scripts.bench_kernels --device=gpu --json=gpu.json

Every kernel with shapes of real models on an NVIDIA GPU: values against plain JAX, bandwidth and
operations a second beside ceilings of the same run.
"""

import functools
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import flags

from scripts import running
from scripts.bench_gpu import bench_gpu
from scripts.timing import median_seconds

_SUITE = flags.DEFINE_enum("suite", "attention_cpu", ["attention_cpu"], "What to measure.")
_DEVICE = flags.DEFINE_enum("device", "cpu", ["cpu", "gpu"], "What to measure on.")
_SHRINK = flags.DEFINE_integer("shrink", 1, "Divides all lengths, for a trial.", lower_bound=1)
_JSON = flags.DEFINE_string("json", None, "File to write the numbers to.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Timed calls; the median is kept.", lower_bound=1)

Heads = tuple[int, int, int]  # query heads, KV heads, channels
WINDOW, STRIDE = 16, 8
HEADS = {"dense": (4, 4, 64), "qwen3_0.6b": (16, 8, 128)}
DOUBLINGS = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
TIMED_UP_TO = 32768


def shapes(tokens: int, heads: Heads) -> list[tuple[int, ...]]:
    """Of query, key, value and the entries' key and value."""
    query, kv, dim = heads
    rows = [(1, tokens, kv, dim)] * 2 + [(1, tokens // STRIDE, kv, dim)] * 2
    return [(1, tokens, query, dim), *rows]


def compile_attention(tokens: int, heads: Heads, kind: str, *, gradient: bool) -> Any:
    """A compiled function of the five operands; `kind` is an implementation, or "full"."""
    import jax
    import jax.numpy as jnp

    from pallas_kernels.compressed_attention.api import compressed_attention

    end = jnp.arange(STRIDE - 1, tokens, STRIDE)

    def attend(query, key, value, entry_key, entry_value):
        if kind == "full":
            return jax.nn.dot_product_attention(query, key, value, is_causal=True)
        operands = query, key, value, entry_key, entry_value
        return compressed_attention(*operands, end, window=WINDOW, implementation=kind)

    def loss(*operands):
        return jnp.sum(attend(*operands) ** 2)

    wanted = range(3 if kind == "full" else 5)
    function = jax.value_and_grad(loss, argnums=tuple(wanted)) if gradient else attend
    operands = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes(tokens, heads)]
    return jax.jit(function).lower(*operands).compile()


def memory(compiled: Any) -> dict[str, int]:
    """Bytes that the compiler assigns."""
    found = compiled.memory_analysis()
    return {
        "arguments": found.argument_size_in_bytes,
        "output": found.output_size_in_bytes,
        "temporary": found.temp_size_in_bytes,
    }


def seconds(compiled: Any, tokens: int, heads: Heads, repeats: int) -> float:
    """Median time of a call."""
    import jax
    import numpy as np

    rng = np.random.default_rng(0)
    draw = functools.partial(rng.standard_normal, dtype=np.float32)
    operands = jax.device_put([draw(shape) for shape in shapes(tokens, heads)])
    return median_seconds(lambda: jax.block_until_ready(compiled(*operands)), repeats)


def _high_water() -> int:
    """Highest resident size of this process so far, in bytes; Linux."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def _peak_growth(tokens: int, heads: Heads, kind: str, gradient: bool) -> int:
    """Bytes by which one call raises the highest resident size of this process."""
    compiled = compile_attention(tokens, heads, kind, gradient=gradient)
    import jax
    import numpy as np

    operands = jax.device_put([np.ones(shape, np.float32) for shape in shapes(tokens, heads)])
    jax.block_until_ready(operands)
    before = _high_water()
    jax.block_until_ready(compiled(*operands))
    return _high_water() - before


def alone(function: Callable[..., int], *args: Any) -> int:
    """The result of a function in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, args)


def layer_memory(tokens: int) -> dict[str, int]:
    """Bytes of one decoder layer of Qwen3-0.6B, forward, its MLP by chunks of 1024 tokens."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from phasejax.models.config import ModelConfig
    from phasejax.models.qwen3 import Block

    config = ModelConfig(attention="compressed", window=STRIDE, local_window=WINDOW)
    graph, state = nnx.split(nnx.eval_shape(lambda: Block(config, rngs=nnx.Rngs(0))))

    def layer(state, hidden):
        block = nnx.merge(graph, state)
        hidden = hidden + block.attention(block.attention_norm(hidden))
        chunks = hidden.reshape(-1, 1024, config.width)
        return jax.lax.map(lambda x: x + block.mlp(block.mlp_norm(x)), chunks)

    hidden = jax.ShapeDtypeStruct((1, tokens, config.width), jnp.float32)
    return memory(jax.jit(layer).lower(state, hidden).compile())


def attention_cpu(repeats: int, shrink: int) -> dict[str, Any]:
    """Measures and returns all numbers of the suite, its lengths divided by `shrink`."""
    from phasejax.evals.results import versions

    result: dict[str, Any] = {"window": WINDOW, "stride": STRIDE, "heads": HEADS}
    for name, tokens, other in (("dense", 4096, "reference"), ("full", 8192, "full")):
        heads = HEADS["dense"]
        tokens //= shrink
        calls = [
            compile_attention(tokens, heads, kind, gradient=True) for kind in ("xla_blocked", other)
        ]
        times = [seconds(call, tokens, heads, repeats) for call in calls]
        temporary = [memory(call)["temporary"] for call in calls]
        result |= {
            f"tokens_vs_{name}": tokens,
            f"seconds_vs_{name}": times,
            f"temporary_bytes_vs_{name}": temporary,
            f"speedup_vs_{name}": times[1] / times[0],
            f"peak_memory_ratio_vs_{name}": temporary[0] / temporary[1],
        }
    process = [
        alone(_peak_growth, 4096 // shrink, HEADS["dense"], kind, True)
        for kind in ("xla_blocked", "reference")
    ]
    result["process_bytes_vs_dense"] = process
    result["process_memory_ratio_vs_dense"] = process[0] / process[1]
    rows = []
    doublings = [tokens // shrink for tokens in DOUBLINGS]
    for tokens in running.tracked("doublings", doublings):
        heads = HEADS["qwen3_0.6b"]
        compiled = compile_attention(tokens, heads, "xla_blocked", gradient=False)
        row: dict[str, Any] = {"tokens": tokens} | memory(compiled)
        row["total_bytes"] = row["arguments"] + row["output"] + row["temporary"]
        if tokens * shrink <= TIMED_UP_TO:
            row["seconds"] = seconds(compiled, tokens, heads, min(repeats, 3))
            before = rows[-1]["seconds"] if rows else None
            row["times_the_half"] = before and row["seconds"] / before
        rows.append(row)
    result["doublings"] = rows
    result["layer_bytes"] = {"tokens": doublings[-1]} | layer_memory(doublings[-1])
    return result | {"versions": versions()}


def show(result: dict[str, Any]) -> None:
    """Prints the ratios and the doublings as tables."""
    ratios = {name: value for name, value in result.items() if isinstance(value, float)}
    running.show_numbers("compressed attention, forward and backward", ratios)
    table = running.Table()
    for head in ("tokens", "MB in all", "MB temporary", "seconds", "times the half"):
        table.add_column(head, justify="right")
    for row in result["doublings"]:
        measured = [row.get(name) for name in ("seconds", "times_the_half")]
        numbers = [f"{row[name] / 1e6:.1f}" for name in ("total_bytes", "temporary")]
        table.add_row(
            str(row["tokens"]), *numbers, *("" if x is None else f"{x:.3g}" for x in measured)
        )
    running.Console().print(table)


def show_gpu(result: dict[str, Any]) -> None:
    """Prints a line a kernel, with its shares of the ceilings."""
    limits = result["ceilings"]
    title = (
        f"{result['device']}: copies {limits['bytes_per_second'] / 1e9:.0f} GB/s,"
        f" multiplies {limits['flops_per_second'] / 1e12:.0f} TFLOP/s"
    )
    names = ("op", "shape", "direction", "ms", "GB/s", "of copy", "TFLOP/s", "of product", "values")
    table = running.Table(*names, title=title)
    for row in result["rows"]:
        cells = [row[name] for name in names[:3]]
        if "error" in row:
            table.add_row(*cells, *[""] * 5, row["error"])
            continue
        rates = [""] * 4
        if "bytes_per_second" in row:
            rates = [
                f"{row['bytes_per_second'] / 1e9:.0f}",
                f"{row['share_of_bytes_per_second']:.0%}",
                f"{row['flops_per_second'] / 1e12:.1f}",
                f"{row['share_of_flops_per_second']:.0%}",
            ]
        values = "agree" if row["agrees"] else f"off by {row['largest_error']:.2g}"
        table.add_row(*cells, f"{row['seconds'] * 1e3:.3g}", *rates, values)
    running.Console().print(table)


def main(_: list[str]) -> None:
    """Maps flags to arguments."""
    running.check_json(_JSON.value)
    if _DEVICE.value == "gpu":
        result = bench_gpu(_REPEATS.value)
        show_gpu(result)
    else:
        result = {"attention_cpu": attention_cpu}[_SUITE.value](_REPEATS.value, _SHRINK.value)
        show(result)
    running.write_json(_JSON.value, result)


if __name__ == "__main__":
    running.run(main)
