# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a checkpoint make which parameter of `DeepseekV4`, and whether all are there."""

import dataclasses
from typing import Any

import numpy as np
from flax import nnx

from phasejax.checkpoints.deepseek_v4_names import DRAFT, Layout, tensor_name
from phasejax.checkpoints.dequantized import Dequantized
from phasejax.models.deepseek_v4.config import DeepseekV4Config
from phasejax.models.deepseek_v4.decoder import DeepseekV4

Path = tuple[Any, ...]  # strings and the numbers of layers


@dataclasses.dataclass(frozen=True)
class Stored:
    """How a parameter lies in a checkpoint.

    Attributes:
        names: its tensor, or one for each row of its first axis.
        shape: of each of them; one tensor alone may be the parameter in another shape.
        stacked: whether there is one for each row.
    """

    names: list[str]
    shape: tuple[int, ...]
    stacked: bool


def stored(path: Path, shape: tuple[int, ...], layout: Layout) -> Stored:
    """The tensors of the parameter at a path of the model's state."""
    name = tensor_name(path, layout)
    if "*" in name:
        return Stored([name.replace("*", str(row)) for row in range(shape[0])], shape[1:], True)
    if path[-1] == "output_down":  # the groups' blocks lie below one another
        return Stored([name], (shape[0] * shape[1], shape[2]), False)
    return Stored([name], shape, False)


def structure(config: DeepseekV4Config) -> tuple[nnx.GraphDef[DeepseekV4], list[tuple[Path, Any]]]:
    """The model without its arrays, and the path, shape and dtype of each; allocates nothing."""
    graph, state = nnx.split(nnx.eval_shape(lambda: DeepseekV4(config, rngs=nnx.Rngs(0))))
    return graph, list(nnx.to_flat_state(state))


def layout_of(tensors: Dequantized) -> Layout:
    """The spelling of a checkpoint, told by its embedding.

    Raises:
        ValueError: if it has none that is known.
    """
    names: dict[str, Layout] = {
        tensor_name(("embed",), "released"): "released",
        tensor_name(("embed",), "transformers"): "transformers",
    }
    for name, layout in names.items():
        if name in tensors:
            return layout
    raise ValueError(
        f"The checkpoint holds none of the tensors {', '.join(names)}, so its spelling is unknown:"
        " check that it is complete."
    )


def check(
    tensors: Dequantized, wanted: list[Stored], dtypes: list[np.dtype], num_experts: int
) -> None:
    """Compares names, shapes and dtypes with what a model needs; draft layers are not looked at.

    Of the values, only the tables of hashed layers are read.

    Raises:
        ValueError: naming the first tensor that is missing, surplus, of another shape or kind, or a
            table that names an expert which is not there.
    """
    shapes = {name: part.shape for part in wanted for name in part.names}
    missing = [name for name in shapes if name not in tensors]
    surplus = [name for name in tensors if name not in shapes and not name.startswith(DRAFT)]
    for what, found in (("lacks", missing), ("has the surplus", surplus)):
        if found:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            raise ValueError(
                f"The checkpoint {what} tensor {found[0]!r}{more}: it does not match its"
                " config.json, so fetch both again."
            )
    for name, shape in shapes.items():
        if tensors.shape(name) != shape:
            raise ValueError(
                f"Tensor {name!r} has shape {list(tensors.shape(name))}, but config.json says"
                f" {list(shape)}: fetch both again."
            )
    for part, dtype in zip(wanted, dtypes, strict=True):
        for name in part.names:
            tensors.check_kind(name, dtype)
        if np.issubdtype(dtype, np.integer):
            _check_table(part.names[0], tensors.read(part.names[0], dtype), num_experts)


def _check_table(name: str, table: np.ndarray, num_experts: int) -> None:
    wrong = table[(table < 0) | (table >= num_experts)]
    if wrong.size:
        raise ValueError(
            f"Tensor {name!r} names expert {wrong[0]}, but config.json says"
            f" n_routed_experts={num_experts}: fetch both again."
        )


def export_dtype(name: str, dtype: np.dtype, config: DeepseekV4Config, layout: Layout) -> np.dtype:
    """Dtype in which a tensor is written: as the model keeps it, but for two kinds.

    Tables of experts are int64; the released spelling has norms in the dtype of matrices.
    """
    if np.issubdtype(dtype, np.integer):
        return np.dtype(np.int64)
    if layout == "released" and name.endswith("norm.weight"):
        return np.dtype(config.param_dtype)
    return dtype
