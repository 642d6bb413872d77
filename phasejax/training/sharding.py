# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Logical axes to mesh axes, in one place."""

import dataclasses
import math
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec


@dataclasses.dataclass(frozen=True)
class ShardingRules:
    """Mesh axis of each logical axis; None means replicated.

    Attributes:
        accumulation: microbatches, computed one after the other.
        batch: prompts of a microbatch.
        tokens: positions of a prompt.
        parameters: the longest axis of each parameter, and of what the optimizer keeps, that the
            mesh axis divides; "data" leaves every device its share of both instead of a copy. The
            gradients of a step are whole on every device all the same.
    """

    accumulation: str | None = None
    batch: str | None = "data"
    tokens: str | None = None
    parameters: str | None = None

    def sharding(self, mesh: Mesh, *logical: str) -> NamedSharding:
        """Sharding of an array with these logical axes.

        Raises:
            ValueError: if two of them fall on one mesh axis.
        """
        axes = [getattr(self, name) for name in logical]
        used = [axis for axis in axes if axis is not None]
        if len(used) != len(set(used)):
            raise ValueError(
                f"axes {logical} map to mesh axes {axes}: a mesh axis can shard only one of them."
            )
        return NamedSharding(mesh, PartitionSpec(*axes))

    def parameter(self, mesh: Mesh, leaf: Any) -> NamedSharding:
        """Sharding of a parameter, given anything with its shape; replicated if nothing divides."""
        axes: list[str | None] = [None] * len(leaf.shape)
        if self.parameters is not None:
            count = mesh.shape[self.parameters]
            fitting = [i for i, size in enumerate(leaf.shape) if size and size % count == 0]
            if fitting:
                axes[max(fitting, key=lambda i: leaf.shape[i])] = self.parameters
        return NamedSharding(mesh, PartitionSpec(*axes))


def data_mesh(microbatch: int) -> Mesh:
    """A one-dimensional mesh of as many of the devices as divide a microbatch evenly."""
    count = math.gcd(jax.device_count(), microbatch)
    return jax.make_mesh(
        (count,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:count]
    )
