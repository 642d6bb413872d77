# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The kernels at the shapes of real models, as functions of arrays: for compilation and benchmarks.

An op takes part with a module `arg_specs` whose SPECS are operands and options by name.
"""

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

DIRECTIONS = ("forward", "backward")


@dataclasses.dataclass(frozen=True)
class Program:
    """One kernel at one shape.

    Attributes:
        op: name of the op.
        shape: name of the shape among the op's SPECS.
        direction: "forward", or "backward" for forward and backward in one program.
    """

    op: str
    shape: str
    direction: str


def programs(implementation: str) -> list[Program]:
    """Every program of the ops that have this implementation and shapes to try it at."""
    import pallas_kernels

    found = []
    for op in sorted(m.name for m in pkgutil.iter_modules(pallas_kernels.__path__) if m.ispkg):
        package = importlib.import_module(f"pallas_kernels.{op}")
        if {implementation, "arg_specs"} <= {
            m.name for m in pkgutil.iter_modules(package.__path__)
        }:
            shapes = importlib.import_module(f"pallas_kernels.{op}.arg_specs").SPECS
            found += [Program(op, shape, way) for shape in shapes for way in DIRECTIONS]
    return found


def _is_real(x: Any) -> bool:
    import jax.numpy as jnp

    return jnp.issubdtype(x.dtype, jnp.floating)


def function_of(program: Program, implementation: str) -> tuple[Callable[..., Any], tuple]:
    """The function that a program calls, and the abstract arrays that it takes.

    Backward, these are the operands and one cotangent for each real output: nothing is made inside
    the program, where a compiler may choose a kinder place for it than where operands live.
    """
    import jax

    module = importlib.import_module(f"pallas_kernels.{program.op}.{implementation}")
    specs = importlib.import_module(f"pallas_kernels.{program.op}.arg_specs").SPECS
    operands, options = specs[program.shape]
    forward = functools.partial(getattr(module, program.op), **options)
    if program.direction == "forward":
        return forward, operands

    def real_outputs(*operands: Any) -> list[jax.Array]:
        return [x for x in jax.tree.leaves(forward(*operands)) if _is_real(x)]

    def backward(cotangent: list[jax.Array], *operands: Any) -> list[jax.Array]:
        leaves, tree = jax.tree.flatten(operands)
        real = [i for i, x in enumerate(leaves) if _is_real(x)]

        def of_real(*values: jax.Array) -> list[jax.Array]:
            every = list(leaves)
            for i, value in zip(real, values, strict=True):
                every[i] = value
            return real_outputs(*jax.tree.unflatten(tree, every))

        _, pull = jax.vjp(of_real, *(leaves[i] for i in real))
        return pull(cotangent)

    return backward, (jax.eval_shape(real_outputs, *operands), *operands)
