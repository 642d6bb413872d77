# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a run through Orbax: newest good one first, and never a silent restart."""

import logging
import os
from pathlib import Path
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

logger = logging.getLogger(__name__)


class CheckpointStore:
    """Saves and restores a pytree by step.

    Args:
        directory: folder of the checkpoints; made when first needed.
        keep: newest checkpoints kept; two survive the loss of one.
    """

    def __init__(self, directory: str | os.PathLike, *, keep: int = 2):
        self.directory = Path(directory).absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._checkpointer = ocp.training.Checkpointer(
            str(self.directory),
            preservation_policy=ocp.training.preservation_policies.LatestN(keep),  # pyrefly: ignore[bad-argument-type]
            cleanup_tmp_directories=True,
        )

    def save(self, step: int, tree: Any) -> None:
        """Saves a tree of arrays as checkpoint `step`; returns once it is safe on disk."""
        self._checkpointer.save(step, tree, overwrite=True)

    def restore(self, like: Any) -> tuple[int, Any] | None:
        """The newest checkpoint that can be read, or None if none was ever written.

        Args:
            like: a tree of the same structure whose leaves say shape, dtype and sharding.

        Returns:
            Its step and tree.

        Raises:
            ValueError: if checkpoints exist and none can be read.
        """
        abstract = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None)),
            like,
        )
        steps = sorted((info.step for info in self._checkpointer.checkpoints), reverse=True)
        for step in steps:
            try:
                return step, self._checkpointer.load(step, abstract)
            except Exception as error:  # Orbax and TensorStore raise many kinds for a damaged file
                logger.warning(
                    "Checkpoint %d in %s cannot be read and is skipped: %s",
                    step,
                    self.directory,
                    error,
                )
        if steps or self._remains():
            raise ValueError(
                f"No checkpoint in {self.directory} can be read (steps tried: {steps}). Delete the"
                " folder to train from scratch, or restore it."
            )
        return None

    def _remains(self) -> bool:
        """Whether folders of checkpoints exist that Orbax does not list."""
        return any(path.is_dir() and path.name.isdigit() for path in self.directory.iterdir())

    def delete(self, step: int) -> None:
        """Removes a checkpoint."""
        self._checkpointer.delete(step)

    def close(self) -> None:
        """Waits for writes and frees the checkpointer."""
        self._checkpointer.close()
