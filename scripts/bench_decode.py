# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Times prefill and decoding, and says what a cache costs and how decoding grows with context.

    python -m scripts.bench_decode --compare=transformers --json=docs/results/bench_decode.json

On one core, in float32. Speed is that of the tiny DeepSeek-V4, with --compare=transformers (where
torch and transformers are installed) beside that package's eager model, with the same weights and
in turns with it. `decode` is `phasejax.generate`, one program for all tokens; `step` calls a
compiled step for every token, as a server would. Growth is that of a step over caches of 1K to 64K
tokens, filled by chunked prefill, for DeepSeek-V4 and for compressed and full attention of Qwen3;
the bytes that a step needs beside its arguments are those that the compiler counts.
"""

import functools
import os
import tempfile
import time
from collections import defaultdict
from typing import Any

import numpy as np
from absl import flags

from scripts import running
from scripts.timing import medians_in_turns, seconds_of

_JSON = flags.DEFINE_string("json", None, "File to write the numbers to.")
_COMPARE = flags.DEFINE_enum("compare", None, ["transformers"], "Also time a peer in turns.")
_REPEATS = flags.DEFINE_integer("repeats", 7, "Timed calls; the median is kept.", lower_bound=1)
_CONTEXTS = flags.DEFINE_multi_integer(
    "contexts",
    [1024, 4096, 16384, 65536],
    "Tokens in a cache; say it once for each.",
    lower_bound=1,
)

BATCHES, PROMPT, NEW, CHUNK = (1, 8), 512, 64, 1024
# Tokens an entry in every layer that scores entries; those of full attention are the tokens.
ENTRIES = {"deepseek_v4_tiny": (4, 128, 4), "qwen3_w8s8": (8, 8), "qwen3_full": (1, 1)}


def split(model: Any) -> tuple[Any, Any]:
    """A jitted step (params, tokens, cache) that takes the cache over, and the parameters."""
    import jax
    from flax import nnx

    graph, params = nnx.split(model)

    @functools.partial(jax.jit, donate_argnums=2)
    def step(params: Any, tokens: Any, cache: Any) -> tuple[Any, Any]:
        logits, cache = nnx.merge(graph, params)(tokens, cache=cache)
        return logits[:, -1:].argmax(-1).astype("int32"), cache

    return step, params


def speed(model: Any, peer: Any, repeats: int) -> list[dict[str, Any]]:
    """Tokens a second of prefill and decoding at every batch size."""
    import jax
    import jax.numpy as jnp

    import phasejax

    step, params = split(model)
    rows = []
    for batch in running.tracked("speed", BATCHES):
        tokens = np.random.default_rng(0).integers(64, size=(batch, PROMPT)).astype(np.int32)
        ours = jnp.asarray(tokens)

        def prefill(ours: Any = ours, batch: int = batch) -> Any:
            cache = model.init_cache(batch, PROMPT + NEW, max_rollback=0)
            return jax.block_until_ready(step(params, ours, cache))

        def steps(first: Any, cache: Any) -> Any:
            token = first
            for _ in range(NEW):
                token, cache = step(params, token, cache)
            return jax.block_until_ready(token)

        def generate(count: int, ours: Any = ours) -> Any:
            return np.asarray(phasejax.generate(model, ours, max_new_tokens=count))

        first, cache = prefill()
        calls: dict[str, Any] = {
            "prefill": prefill,
            "generate_1": lambda generate=generate: generate(1),
            "generate": lambda generate=generate: generate(1 + NEW),
            "step": lambda first=first, cache=cache: steps(first, cache.snapshot()),
        }
        if peer is not None:
            calls["peer_prefill"] = lambda tokens=tokens: peer.prefill(tokens)
            calls["peer_both"] = lambda tokens=tokens: peer.decode(peer.prefill(tokens), NEW)
        for call in calls.values():
            call()  # compiles
        clocks = [functools.partial(seconds_of, call) for call in calls.values()]
        seconds = dict(zip(calls, medians_in_turns(clocks, repeats), strict=True))
        rate = {
            "prefill": batch * PROMPT / seconds["prefill"],
            "decode": batch * NEW / (seconds["generate"] - seconds["generate_1"]),
            "step": batch * NEW / seconds["step"],
        }
        row: dict[str, Any] = {
            "batch": batch,
            "prompt": PROMPT,
            "new": NEW,
            "tokens_per_second": rate,
        }
        if peer is not None:
            alone = seconds["peer_both"] - seconds["peer_prefill"]
            row["peer_tokens_per_second"] = theirs = {
                "prefill": batch * PROMPT / seconds["peer_prefill"],
                "decode": batch * NEW / alone,
            }
            row["speedup"] = {
                "prefill": rate["prefill"] / theirs["prefill"],
                "decode": rate["decode"] / theirs["decode"],
                "step": rate["step"] / theirs["decode"],
            }
            with peer.stable_ties():
                theirs = peer.decode(peer.prefill(tokens), NEW)
            row["same_tokens"] = float((theirs == generate(1 + NEW)[:, :NEW]).mean())
        rows.append(row)
    return rows


def cache_bytes(model: Any) -> dict[str, dict[str, float]]:
    """Bytes of one stream's cache by part: fixed ones, and those for every token of capacity."""
    import jax

    def parts(capacity: int) -> dict[str, int]:
        cache = jax.eval_shape(lambda: model.init_cache(1, capacity, max_rollback=0))
        found: dict[str, int] = defaultdict(int)
        for path, leaf in jax.tree.leaves_with_path(cache.layers):
            name = ".".join(key.name for key in path if hasattr(key, "name"))
            found[name] += leaf.size * leaf.dtype.itemsize
        return found

    small, large = parts(CHUNK), parts(2 * CHUNK)
    each = {name: (large[name] - small[name]) / CHUNK for name in small}
    fixed = {name: small[name] - CHUNK * each[name] for name in small}
    return {
        "per_token": {name: value for name, value in each.items() if value},
        "fixed": {name: value for name, value in fixed.items() if value},
    }


def count_compilations() -> list[str]:
    """A list that grows by one with every program that is compiled from now on."""
    import jax

    seen: list[str] = []
    event = "/jax/core/compile/backend_compile_duration"
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: seen.append(name) if name == event else None
    )
    return seen


def growth(name: str, model: Any, contexts: list[int], repeats: int) -> list[dict[str, Any]]:
    """What a step costs over caches that hold so many tokens, and how often one compiled.

    Args:
        name: one of ENTRIES.
        model: the decoder.
        contexts: tokens in a cache.
        repeats: timed runs of NEW tokens; the median is kept.
    """
    import jax
    import jax.numpy as jnp

    step, params = split(model)
    tokens = np.random.default_rng(1).integers(64, size=(1, max(contexts))).astype(np.int32)
    rows, compiled = [], count_compilations()
    for context in running.tracked(name, contexts):
        room = context + NEW * (repeats + 1)
        cache = model.init_cache(1, room, max_rollback=0)
        token = None
        for start in range(0, context, CHUNK):
            part = jnp.asarray(tokens[:, start : min(start + CHUNK, context)])
            token, cache = step(params, part, cache)
        memory = step.lower(params, token, cache).compile().memory_analysis()
        token, cache = step(params, token, cache)  # compiles
        jax.block_until_ready(cache)
        before, times = len(compiled), []
        for _ in range(repeats):
            began = time.perf_counter()
            for _ in range(NEW - 1):
                token, cache = step(params, token, cache)
            jax.block_until_ready(token)
            times.append((time.perf_counter() - began) / (NEW - 1))
        rows.append(
            {
                "context": context,
                "entries": sum(context // ratio for ratio in ENTRIES[name]),
                "seconds_a_token": sorted(times)[len(times) // 2],
                "recompiled": len(compiled) - before,
                "temporary_bytes": memory.temp_size_in_bytes,
                "cache_bytes": sum(x.nbytes for x in jax.tree.leaves(cache)),
            }
        )
    return rows


def qwen3(**changes: Any) -> Any:
    """The decoder of the laptop's runs, with random weights."""
    from flax import nnx

    from phasejax.models.build import init_params, model_structure
    from phasejax.models.config import ModelConfig

    config = ModelConfig(
        vocab_size=64,
        num_layers=2,
        width=64,
        num_heads=4,
        num_kv_heads=1,
        head_dim=16,
        mlp_width=192,
        rope_theta=10_000.0,
        **changes,
    )
    return nnx.merge(model_structure(config), init_params(config, 0))


def bench(*, compare: str | None, repeats: int, contexts: list[int]) -> dict[str, Any]:
    """Measures and returns all numbers; pins the process to one core first."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    from flax import nnx

    import phasejax
    from phasejax.checkpoints import from_hf
    from phasejax.evals.results import versions
    from phasejax.models.deepseek_v4.presets import preset

    result: dict[str, Any] = {"versions": versions()}
    peer = None
    if compare == "transformers":
        from scripts.transformers_peer import Peer

        peer = Peer()
        result["versions"] |= peer.versions
        with tempfile.TemporaryDirectory() as directory:
            peer.save(directory)
            v4 = from_hf(directory)
        tokens = np.random.default_rng(0).integers(64, size=(1, PROMPT)).astype(np.int32)
        theirs, ours = peer.logits(tokens), np.asarray(nnx.jit(lambda m, t: m(t))(v4, tokens))
        result["logits_differ_by"] = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
    else:
        v4 = phasejax.DeepseekV4(preset("deepseek_v4_tiny"), rngs=nnx.Rngs(0))
    result["speed"] = speed(v4, peer, repeats)
    models = {
        "deepseek_v4_tiny": v4,
        "qwen3_w8s8": qwen3(attention="compressed", window=8),
        "qwen3_full": qwen3(),
    }
    result["cache_bytes"] = {name: cache_bytes(model) for name, model in models.items()}
    result["growth"] = {
        name: growth(name, model, contexts, repeats) for name, model in models.items()
    }
    return result


def show(result: dict[str, Any]) -> None:
    """Prints the numbers as tables."""
    console = running.Console()
    table = running.Table("batch", "what", "tokens/s", "transformers", "times", title="speed")
    for row in result["speed"]:
        for name, rate in row["tokens_per_second"].items():
            theirs = row.get("peer_tokens_per_second", {}).get("decode" if name == "step" else name)
            times = row.get("speedup", {}).get(name)
            cells = ("" if x is None else f"{x:.4g}" for x in (rate, theirs, times))
            table.add_row(str(row["batch"]), name, *cells)
    console.print(table)
    table = running.Table("model", "part", "bytes a token", "fixed bytes", title="cache")
    for model, kinds in result["cache_bytes"].items():
        for part in sorted(kinds["per_token"].keys() | kinds["fixed"].keys()):
            cells = (f"{kinds[kind].get(part, 0):g}" for kind in ("per_token", "fixed"))
            table.add_row(model, part, *cells)
    console.print(table)
    columns = ("context", "entries", "ms a token", "compiled", "temporary kB", "cache kB")
    table = running.Table("model", *columns, title="a step")
    for model, rows in result["growth"].items():
        for row in rows:
            table.add_row(
                model,
                str(row["context"]),
                str(row["entries"]),
                f"{row['seconds_a_token'] * 1e3:.3g}",
                str(row["recompiled"]),
                f"{row['temporary_bytes'] / 1e3:.5g}",
                f"{row['cache_bytes'] / 1e3:.5g}",
            )
    console.print(table)


def main(_: list[str]) -> None:
    """Maps flags to arguments."""
    running.check_json(_JSON.value)
    result = bench(compare=_COMPARE.value, repeats=_REPEATS.value, contexts=_CONTEXTS.value)
    show(result)
    running.write_json(_JSON.value, result)


if __name__ == "__main__":
    running.run(main)
