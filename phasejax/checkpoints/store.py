# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a run through Orbax: newest good one first, and never a silent restart."""

import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from phasejax.checkpoints.digests import check_digests, sealed, tree_digests, unsealed
from phasejax.files import write_atomic

logger = logging.getLogger(__name__)
NAME = "state"  # of the tree within Orbax's folder
UNFINISHED = ".orbax-checkpoint-tmp"  # what Orbax names a folder that it has not committed


class CheckpointStore:
    """Saves and restores a pytree by step: a folder STEP of Orbax, and STEP.json.

    STEP.json holds the SHA-256 of every leaf, because Orbax does not notice a changed byte, and of
    itself. It is written before the folder is committed, so no checkpoint is stored without; one
    that has lost it is read with a warning that it was not verified.

    Args:
        directory: folder of the checkpoints; made when first saved to.
        keep: newest checkpoints kept; two survive the loss of one.
    """

    def __init__(self, directory: str | os.PathLike, *, keep: int = 2):
        self.directory = Path(directory).absolute()
        self._keep = keep

    @property
    def steps(self) -> list[int]:
        """Steps of the checkpoints, readable or not, the newest first."""
        if not self.directory.is_dir():
            return []
        names = [path.name for path in self.directory.iterdir() if path.is_dir()]
        return sorted((int(name) for name in names if name.isdecimal()), reverse=True)

    def save(self, step: int, tree: Any, *, owner: Mapping[str, Any] | None = None) -> None:
        """Saves a tree of arrays as checkpoint `step`; returns once it is safe on disk.

        Newer checkpoints are removed: whoever saves an earlier step could not read them. One
        process at a time may save.

        Args:
            step: its number.
            tree: arrays.
            owner: what the checkpoint belongs to, as plain JSON; `owners` gives it back.

        Raises:
            OSError: if it could not be written, whatever the reason.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        for path in self.directory.glob(f"*{UNFINISHED}*"):  # of a process that was killed
            shutil.rmtree(path)
        description = sealed({"owner": dict(owner or {}), "leaves": tree_digests(tree)})
        folder = str(self.directory / str(step))
        try:
            write_atomic(self._description(step), description)
            ocp.save(folder, tree, checkpointable_name=NAME, overwrite=True)
        except Exception as error:  # a full disk is a ValueError of TensorStore
            raise OSError(
                f"Checkpoint {step} could not be written to {self.directory} ({error}). Earlier"
                " ones are kept: make room, and start the same again."
            ) from error
        kept = [other for other in self.steps if other <= step][: self._keep]
        for other in set(self.steps) - set(kept):
            self._remove(other)

    def owners(self) -> dict[int, dict[str, Any]]:
        """What each checkpoint belongs to, the newest first; those that do not say are left out."""
        found = {}
        for step in self.steps:
            try:
                found[step] = self._describe(step).get("owner")
            except (OSError, ValueError) as error:  # restore will say it
                logger.debug("Checkpoint %d does not say whose it is: %s", step, error)
        return {step: owner for step, owner in found.items() if owner}

    def restore(self, like: Any) -> tuple[int, Any] | None:
        """The newest checkpoint that can be read and is what was saved, or None if there is none.

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
        steps = self.steps
        for step in steps:
            try:
                return step, self._load(step, abstract)
            except Exception as error:  # Orbax and TensorStore raise many kinds for a damaged file
                logger.warning(
                    "Checkpoint %d in %s cannot be read and is skipped: %s",
                    step,
                    self.directory,
                    error,
                )
        if steps:
            raise ValueError(
                f"No checkpoint in {self.directory} can be read (steps tried: {steps}): restore"
                " one, or train from scratch in another workdir."
            )
        return None

    def _load(self, step: int, abstract: Any) -> Any:
        described = self._describe(step)
        tree = ocp.load(str(self.directory / str(step)), abstract, checkpointable_name=NAME)
        if described:
            check_digests(tree, described["leaves"])
        else:
            logger.warning(
                "Checkpoint %d is read unverified: %s is missing.",
                step,
                self._description(step),
            )
        return tree

    def _description(self, step: int) -> Path:
        return self.directory / f"{step}.json"

    def _describe(self, step: int) -> dict[str, Any]:
        path = self._description(step)
        return unsealed(path.read_text(encoding="utf-8")) if path.exists() else {}

    def _remove(self, step: int) -> None:
        """Renames first: a removal that is cut off leaves nothing that looks like a checkpoint."""
        gone = self.directory / f"{step}{UNFINISHED}"
        (self.directory / str(step)).rename(gone)
        self._description(step).unlink(missing_ok=True)
        shutil.rmtree(gone)
