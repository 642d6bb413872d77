# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Choosing an implementation of an op, and the errors that say why one cannot be had.

The implementation `name` of the op `op` is the function `op` of the module
`pallas_kernels.<op>.<name>`, imported when it is first asked for. ValueError = the caller is
wrong, and no implementation is tried in its place. NotImplementedError = this one cannot, here or
at these shapes: the next is tried.
"""

import difflib
import importlib
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AxisType

Implementation = str | Sequence[str] | None

# What is not named here is plain JAX, which every platform runs.
PLATFORM = {"pallas_tpu": "tpu", "pallas_gpu": "gpu"}


def platform() -> str:
    """Where a function that is traced now will run: "cpu", "gpu" or "tpu"."""
    device = getattr(jax.config, "jax_default_device")  # noqa: B009, made at run time
    if device is None:
        return jax.default_backend()
    return device if isinstance(device, str) else device.platform


def _partitioned_by_compiler() -> bool:
    """Whether the mesh in force leaves axes of several devices to the compiler."""
    mesh = jax.sharding.get_abstract_mesh()
    axes = zip(mesh.axis_types, mesh.axis_sizes, strict=True)
    return any(kind != AxisType.Manual and size > 1 for kind, size in axes)


def load(op: str, name: str) -> Any:
    """The function that implements an op, if it can run here.

    Raises:
        NotImplementedError: if it runs on another platform, if the mesh would have the compiler
            partition a kernel, or if this installation of JAX lacks what it is written with.
    """
    wanted, here = PLATFORM.get(name), platform()
    if wanted is not None and wanted != here:
        raise NotImplementedError(f"implementation={name!r} runs on {wanted}, not on {here}.")
    if wanted is not None and _partitioned_by_compiler():
        raise NotImplementedError(
            f"implementation={name!r} cannot be partitioned by the compiler:"
            " call it inside jax.shard_map(..., check_vma=False)."
        )
    try:
        module = importlib.import_module(f"pallas_kernels.{op}.{name}")
    except ImportError as error:
        raise NotImplementedError(
            f"implementation={name!r} needs what is not installed: {error}"
        ) from error
    return getattr(module, op)


def call(
    op: str, available: tuple[str, ...], implementation: Implementation, *args: Any, **kwargs: Any
) -> Any:
    """Calls the first implementation of an op that can do it.

    Args:
        op: name of the op: of its folder and of the function in each module there.
        available: names of its implementations, best first; the last one always works.
        implementation: None for all of `available`; a name, or names to try in this order.
        *args: operands.
        **kwargs: options.

    Raises:
        ValueError: if `implementation` names none of `available`, or if the operands are wrong.
        NotImplementedError: if the one that was asked for cannot do it.
        ExceptionGroup: if each of several cannot, with their reasons.
    """
    if implementation is None:
        names = available
    else:
        names = (implementation,) if isinstance(implementation, str) else tuple(implementation)
    if not names:
        raise ValueError(f"implementation={implementation!r} names nothing to try: use None.")
    for name in names:
        if name not in available:
            close = difflib.get_close_matches(name, available, n=1)
            remedy = f"did you mean {close[0]!r}?" if close else "use None for the best one here."
            raise ValueError(
                f"implementation={name!r} is none of {op}'s: {', '.join(available)}: {remedy}"
            )
    reasons = []
    for name in names:
        try:
            return load(op, name)(*args, **kwargs)
        except NotImplementedError as error:
            reasons.append(error)
    if len(reasons) == 1:
        raise NotImplementedError(
            f"{reasons[0]} {op} works here with implementation=None or {available[-1]!r}."
        ) from reasons[0]
    raise ExceptionGroup(
        f"implementation={implementation!r}: none of them can do {op} here;"
        f" implementation=None or {available[-1]!r} works.",
        reasons,
    )


def check(holds: bool, argument: str, value: Any, expected: str) -> None:
    """Refuses a caller's mistake.

    Raises:
        ValueError: unless `holds`.
    """
    if not holds:
        raise ValueError(f"{argument}={value}, but {expected}")


def check_real(**operands: Any) -> None:
    """Refuses operands that are neither float32, bfloat16, float16 nor float64; None is left out.

    Raises:
        ValueError: naming the first of them.
    """
    for name, x in operands.items():
        if x is not None:
            check(
                jax.numpy.issubdtype(x.dtype, jax.numpy.floating) and x.dtype.itemsize > 1,
                f"{name}.dtype",
                x.dtype,
                "operands are float32, bfloat16, float16 or float64: cast it with astype.",
            )


def check_whole(**indices: Any) -> None:
    """Refuses indices, positions and documents that are no integers; None is left out.

    Raises:
        ValueError: naming the first of them.
    """
    for name, x in indices.items():
        if x is not None:
            is_whole = jax.numpy.issubdtype(x.dtype, jax.numpy.integer)
            check(is_whole, f"{name}.dtype", x.dtype, "it holds integers: cast it with astype.")
