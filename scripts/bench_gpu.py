# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Kernels on an NVIDIA GPU: are the values right, and how near are they to what the GPU can do.

Ceilings are measured in the same run: a copy for bytes, a product of bfloat16 matrices for
operations. Bytes and operations of a kernel are those that it declares. The values are compared
with those of plain JAX on the same operands.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from scripts.kernel_programs import Program, function_of, programs
from scripts.timing import median_seconds

TOLERANCE = 2e-2  # of the largest value, as the tests allow bfloat16
Row = dict[str, Any]


def check_platform(found: str) -> None:
    """Refuses to measure anything else in the place of a GPU.

    Raises:
        ValueError: saying what JAX found and what to do.
    """
    if found != "gpu":
        raise ValueError(
            f"--device=gpu, but JAX runs on {found} here: use a machine with an NVIDIA GPU and"
            " install jax[cuda12], or choose --device=cpu."
        )


def declared_costs(function: Callable[..., Any], operands: tuple) -> tuple[int, int]:
    """Operations and bytes that the kernels of a function declare, in loops once a turn."""
    import jax

    def visit(jaxpr: Any, times: int) -> tuple[int, int]:
        flops = read = 0
        for equation in jaxpr.eqns:
            cost = equation.params.get("cost_estimate")
            if equation.primitive.name == "pallas_call":
                flops, read = flops + times * cost.flops, read + times * cost.bytes_accessed
                continue
            turns = times * equation.params.get("length", 1)
            for inner in jax.tree.leaves(
                list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
            ):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    more = visit(inner, turns)
                    flops, read = flops + more[0], read + more[1]
        return flops, read

    return visit(jax.make_jaxpr(function)(*operands).jaxpr, 1)


def _whole_numbers(op: str, shape: tuple[int, ...], place: int, entries: int) -> Any:
    """Positions, ends, chunks or picks for an op: `place` counts its arrays of whole numbers."""
    import numpy as np

    count = np.broadcast_to(np.arange(shape[-1]), shape)
    if op == "ragged_pool":
        return count // 8
    if op == "selected_attention" and place == 0:
        return np.random.default_rng(0).integers(0, entries, shape)
    if op == "index_topk" and place < 2:  # position, end
        return count if place == 0 else 4 * count + 3
    if op == "compressed_attention" and place in (0, 1, 4):  # position, since, end
        return (count, np.maximum(count - 15, 0), None, None, 8 * count + 7)[place]
    return np.zeros(shape)


def draw(program: Program, operands: tuple) -> tuple:
    """Operands of a program on the device: normal reals, and whole numbers as a model has them."""
    import jax
    import jax.numpy as jnp

    leaves, tree = jax.tree.flatten(operands)
    real = [jnp.issubdtype(x.dtype, jnp.floating) for x in leaves]
    # Attention over picks takes queries, tokens, then entries, after cotangents if any.
    entries = [0, *(x.shape[1] for x in leaves if x.ndim == 4)][-1]
    key, place, drawn = jax.random.key(0), 0, []
    for i, (x, is_real) in enumerate(zip(leaves, real, strict=True)):
        if is_real:
            drawn.append(jax.random.normal(jax.random.fold_in(key, i), x.shape, x.dtype))
        else:
            drawn.append(jnp.asarray(_whole_numbers(program.op, x.shape, place, entries), x.dtype))
            place += 1
    return jax.tree.unflatten(tree, drawn)


def largest_error(actual: Any, expected: Any) -> float:
    """Largest difference of real results, each as a share of the largest finite value expected."""
    import jax
    import numpy as np

    worst = 0.0
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        if not jax.numpy.issubdtype(e.dtype, jax.numpy.floating):
            continue
        a, e = np.asarray(a, np.float64), np.asarray(e, np.float64)
        finite = np.isfinite(e)
        if (np.isfinite(a) != finite).any():
            return float("inf")
        scale = np.max(np.abs(e), initial=1e-30, where=finite)
        worst = max(worst, float(np.max(np.abs(a[finite] - e[finite]), initial=0) / scale))
    return worst


def ceilings(repeats: int, *, size: int = 2**28, length: int = 8192) -> dict[str, float]:
    """Bytes a second of a copy of `size` floats, operations a second of a product."""
    import jax
    import jax.numpy as jnp

    def seconds(function: Callable, *operands: Any) -> float:
        compiled = jax.jit(function)
        return median_seconds(lambda: jax.block_until_ready(compiled(*operands)), repeats)

    square = jnp.ones((length, length), jnp.bfloat16)
    return {
        "bytes_per_second": 8 * size / seconds(jnp.negative, jnp.ones(size, jnp.float32)),
        "flops_per_second": 2 * length**3 / seconds(jnp.matmul, square, square),
    }


def measure(
    function: Callable[..., Any],
    plain: Callable[..., Any],
    operands: tuple,
    limits: dict[str, float],
    repeats: int,
) -> Row:
    """Times a function, and compares its values with those of another."""
    import jax

    compiled = jax.jit(function)
    error = largest_error(compiled(*operands), jax.jit(plain)(*operands))
    seconds = median_seconds(lambda: jax.block_until_ready(compiled(*operands)), repeats)
    row: Row = {"seconds": seconds, "largest_error": error, "agrees": error <= TOLERANCE}
    flops, read = declared_costs(function, operands)
    if read:  # otherwise no kernel is in it, and nothing was declared
        row |= {"bytes_per_second": read / seconds, "flops_per_second": flops / seconds}
        row |= {f"share_of_{name}": row[name] / limit for name, limit in limits.items()}
    return row


def bench_gpu(repeats: int) -> dict[str, Any]:
    """One row for each program; what cannot run is a row with the reason."""
    import jax

    from phasejax.evals.results import versions

    check_platform(jax.default_backend())
    limits, rows = ceilings(repeats), []
    for program in programs("pallas_gpu"):
        row: Row = dataclasses.asdict(program)
        try:
            function, abstract = function_of(program, "pallas_gpu")
            plain, _ = function_of(program, "xla_blocked")
            row |= measure(function, plain, draw(program, abstract), limits, repeats)
        except Exception as error:  # noqa: BLE001, a kernel that does not run is a result
            row["error"] = f"{type(error).__name__}: {str(error)[:240]}"
        rows.append(row)
    device = jax.devices()[0].device_kind
    return {"device": device, "ceilings": limits, "rows": rows, "versions": versions()}
