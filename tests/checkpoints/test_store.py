# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: the newest good one is read, and what is lost is said."""

import logging
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasejax.checkpoints.store import CheckpointStore


def tree(step: int):
    return {
        "params": {"w": jnp.arange(6.0).reshape(2, 3) + step, "b": jnp.full(3, step, jnp.bfloat16)},
        "position": jnp.int32(step),
    }


def damage(directory: Path, step: int) -> None:
    """Cuts every file of a checkpoint in half."""
    files = [path for path in (directory / str(step)).rglob("*") if path.is_file()]
    assert files
    for path in files:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.fixture
def saved(tmp_path):
    """A folder with checkpoints 2 and 3 of the three that were saved."""
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    for step in (1, 2, 3):
        store.save(step, tree(step))
    store.close()
    return tmp_path / "checkpoints"


def restore(directory: Path):
    store = CheckpointStore(directory, keep=2)
    try:
        return store.restore(tree(0))
    finally:
        store.close()


def assert_is(found, step: int) -> None:
    assert found[0] == step
    leaves = zip(jax.tree.leaves(found[1]), jax.tree.leaves(tree(step)), strict=True)
    for a, b in leaves:
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_the_newest_is_read_and_the_oldest_are_dropped(saved):
    assert_is(restore(saved), 3)
    assert sorted(path.name for path in saved.iterdir() if path.is_dir()) == ["2", "3"]


def test_a_folder_without_checkpoints_gives_none(tmp_path):
    assert restore(tmp_path / "new") is None


def test_a_damaged_newest_is_skipped_and_said(saved, caplog):
    damage(saved, 3)
    with caplog.at_level(logging.WARNING, logger="phasejax.checkpoints.store"):
        assert_is(restore(saved), 2)
    assert "Checkpoint 3" in caplog.text
    assert "cannot be read and is skipped" in caplog.text


def test_nothing_readable_is_an_error(saved):
    damage(saved, 2)
    damage(saved, 3)
    with pytest.raises(
        ValueError, match=r"No checkpoint in .* can be read \(steps tried: \[3, 2\]"
    ):
        restore(saved)


def test_a_checkpoint_that_lost_its_metadata_is_an_error(saved):
    for step in ("2", "3"):
        for path in (saved / step).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(ValueError, match=r"No checkpoint in .* can be read"):
        restore(saved)


def test_a_step_can_be_saved_again(saved):
    store = CheckpointStore(saved, keep=2)
    store.save(3, tree(30))
    store.delete(2)
    store.close()
    step, found = restore(saved)
    assert (step, int(found["position"])) == (3, 30)
    assert not (saved / "2").exists()


def test_another_structure_is_an_error(saved):
    store = CheckpointStore(saved, keep=2)
    with pytest.raises(ValueError, match="can be read"):
        store.restore({"params": {"other": jnp.zeros(2)}})
    store.close()
