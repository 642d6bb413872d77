# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Gate captures: how much each offset of a window counted, on disk and in two numbers a head.

Captures are zarr (version 3) arrays written through TensorStore: PATH/layer_00/key and so on,
float32 [windows, W, K, C], where C is 1 for scalar gates and the head dim for vector ones.
"""

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from phasejax.compress.geometry import WindowGeometry
from phasejax.files import write_atomic

GROUP = "zarr.json"
_SUM_TOLERANCE = 1e-3
_CHUNK = 4096  # windows


@dataclasses.dataclass(frozen=True)
class Gates:
    """Gates of one model on a set of windows.

    Attributes:
        layers: layer -> branch ("key" or "value") -> float32 [windows, W, K, C].
        geometry: the grid of windows.
    """

    layers: dict[int, dict[str, np.ndarray]]
    geometry: WindowGeometry


def _array(path: Path, metadata: dict[str, Any] | None = None) -> Any:
    """Opens an array, or creates one with the given metadata."""
    import tensorstore

    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}
    if metadata is None:
        return tensorstore.open(spec, open=True).result()
    return tensorstore.open(spec | {"metadata": metadata}, create=True).result()


def save_gates(
    path: str | Path,
    layers: Mapping[int, Mapping[str, np.ndarray]],
    geometry: WindowGeometry,
) -> None:
    """Writes gate captures, replacing what was there.

    Args:
        path: the zarr group to write, a directory.
        layers: layer -> branch -> gates [windows, W, K, C] that sum to one over W.
        geometry: the grid of windows.

    Raises:
        ValueError: there is nothing to write, or an array is not what a gate is.
    """
    path = Path(path)
    arrays = {
        f"layer_{layer:02d}/{branch}": np.asarray(gates, np.float32)
        for layer, branches in layers.items()
        for branch, gates in branches.items()
    }
    if not arrays:
        raise ValueError(f"no gates to write to {path}: this model has none, so capture nothing.")
    for name, gates in arrays.items():
        _check(f"{path}/{name}", gates, geometry, "capture the gates again.")
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    for name, gates in arrays.items():
        chunks = [min(_CHUNK, gates.shape[0]), *gates.shape[1:]]
        metadata = {
            "shape": list(gates.shape),
            "data_type": "float32",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
            "dimension_names": ["windows", "offset", "kv_head", "channel"],
        }
        array = _array(path / name, metadata)
        array.write(gates).result()
    attributes = {"window": geometry.window, "stride": geometry.stride, "arrays": sorted(arrays)}
    group = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    write_atomic(path / GROUP, json.dumps(group))


def load_gates(path: str | Path) -> Gates:
    """Reads what save_gates wrote.

    Args:
        path: the zarr group.

    Returns:
        The gates.

    Raises:
        ValueError: the captures are missing or incomplete; the message names the file.
    """
    path = Path(path)
    remedy = "capture the gates of this run again."
    try:
        attributes = json.loads((path / GROUP).read_text(encoding="utf-8"))["attributes"]
        geometry = WindowGeometry(attributes["window"], attributes["stride"])
        names = attributes["arrays"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path / GROUP} does not describe gates ({error}): {remedy}") from error
    layers: dict[int, dict[str, np.ndarray]] = {}
    for name in names:
        try:
            gates = np.asarray(_array(path / name).read().result())
        except ValueError as error:
            raise ValueError(f"{path / name} cannot be read ({error}): {remedy}") from error
        _check(f"{path}/{name}", gates, geometry, remedy)
        layer, branch = name.split("/")
        layers.setdefault(int(layer.removeprefix("layer_")), {})[branch] = gates
    return Gates(layers, geometry)


def _check(name: str, gates: np.ndarray, geometry: WindowGeometry, remedy: str) -> None:
    if gates.ndim != 4 or gates.shape[1] != geometry.window or not gates.size:
        raise ValueError(
            f"{name} has shape {gates.shape}, but gates are [windows, W={geometry.window}, K, C]:"
            f" {remedy}"
        )
    error = float(np.abs(gates.sum(axis=1) - 1).max())
    if not error < _SUM_TOLERANCE:  # also where chunks are missing, which read as zeros
        raise ValueError(f"{name} does not sum to one over the offsets (off by {error}): {remedy}")
