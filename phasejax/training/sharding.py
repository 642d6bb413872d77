# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Logical axes to mesh axes, in one place."""

import dataclasses
import math

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec


@dataclasses.dataclass(frozen=True)
class ShardingRules:
    """Mesh axis of each logical axis; None means replicated.

    Attributes:
        accumulation: microbatches, computed one after the other.
        batch: prompts of a microbatch.
        tokens: positions of a prompt.
        parameters: every parameter axis.
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


def data_mesh(microbatch: int) -> Mesh:
    """A one-dimensional mesh of as many of the devices as divide a microbatch evenly."""
    count = math.gcd(jax.device_count(), microbatch)
    return jax.make_mesh(
        (count,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:count]
    )
