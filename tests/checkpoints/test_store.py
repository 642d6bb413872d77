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
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from orbax.checkpoint import v1 as ocp

from phasejax.checkpoints.digests import check_digests, digest, tree_digests
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
    return tmp_path / "checkpoints"


def restore(directory: Path):
    return CheckpointStore(directory, keep=2).restore(tree(0))


def assert_is(found, step: int) -> None:
    assert found[0] == step
    leaves = zip(jax.tree.leaves(found[1]), jax.tree.leaves(tree(step)), strict=True)
    for a, b in leaves:
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_the_newest_is_read_and_the_oldest_are_dropped(saved):
    assert_is(restore(saved), 3)
    assert sorted(path.name for path in saved.iterdir()) == ["2", "2.json", "3", "3.json"]


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
    step, found = restore(saved)
    assert (step, int(found["position"])) == (3, 30)


def test_a_step_older_than_a_damaged_one_is_saved_in_its_place(saved):
    damage(saved, 3)
    store = CheckpointStore(saved, keep=1)
    store.save(1, tree(1))
    assert store.steps == [1]
    assert_is(restore(saved), 1)


def test_steps_are_numbers_and_not_words(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    for step in (9, 10, 11):
        store.save(step, tree(step))
    assert store.steps == [11, 10]
    damage(tmp_path, 11)
    assert_is(restore(tmp_path), 10)


def test_a_checkpoint_is_described_before_it_is_there(saved, monkeypatch):
    # Killed in between, the other order would leave one whose bytes nobody can verify.
    described, save = [], ocp.save

    def note(folder, *args, **options):
        described.append(Path(f"{folder}.json").is_file())
        return save(folder, *args, **options)

    monkeypatch.setattr(ocp, "save", note)
    CheckpointStore(saved, keep=2).save(4, tree(4))
    assert described == [True]


def whole_or_skipped(directory: Path) -> int:
    """The step that is restored, which must be what was saved as this step."""
    found = restore(directory)
    assert found is not None
    assert_is(found, found[0])
    return found[0]


# What Orbax had begun when it met the damage, it leaves to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_a_flipped_byte_is_never_loaded(saved, caplog):
    rng = np.random.default_rng(0)
    files = [path for path in (saved / "3").rglob("*") if path.is_file() and path.stat().st_size]
    steps = []
    for path in sorted([*files, saved / "3.json"]):
        content = path.read_bytes()
        for place in rng.integers(len(content), size=6):
            damaged = bytearray(content)
            damaged[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(damaged)
            steps.append(whole_or_skipped(saved))
        path.write_bytes(content)
    assert set(steps) == {2, 3}, "a file that nothing reads loses nothing"
    assert "SHA-256 differs" in caplog.text
    assert whole_or_skipped(saved) == 3


def test_a_save_that_fails_is_an_os_error_and_costs_nothing(saved, monkeypatch):
    def full(*_, **__):
        (saved / "4.orbax-checkpoint-tmp").mkdir()
        raise ValueError("OUT_OF_RANGE: Failed to write")

    with monkeypatch.context() as planted:
        planted.setattr(ocp, "save", full)
        with pytest.raises(OSError, match=r"Checkpoint 4 could not be written .*make room"):
            CheckpointStore(saved, keep=2).save(4, tree(4))
    assert whole_or_skipped(saved) == 3
    CheckpointStore(saved, keep=2).save(4, tree(4))
    assert whole_or_skipped(saved) == 4


def test_arrays_of_another_checkpoint_are_not_loaded(saved, caplog):
    # Whole files, each readable: only the digests tell.
    shutil.rmtree(saved / "3" / "state")
    shutil.copytree(saved / "2" / "state", saved / "3" / "state")
    assert whole_or_skipped(saved) == 2
    assert "['params']['b'] is not what was saved: its SHA-256 differs" in caplog.text


def test_a_changed_description_is_not_believed(saved):
    store = CheckpointStore(saved, keep=2)
    store.save(4, tree(4), owner={"name": "a"})
    assert store.owners() == {4: {"name": "a"}}
    path = saved / "4.json"
    text = path.read_text()
    for damaged in (text.replace('"name": "a"', '"name": "b"'), text[:30], "[]", ""):
        path.write_text(damaged)
        assert store.owners() == {}
        assert whole_or_skipped(saved) == 3


def test_a_checkpoint_without_digests_is_read_and_said(saved, caplog):
    (saved / "3.json").unlink()
    assert_is(restore(saved), 3)
    assert "Checkpoint 3 is read unverified" in caplog.text


def test_reading_leaves_a_save_in_progress_alone(saved):
    temporary = saved / "4.orbax-checkpoint-tmp"
    temporary.mkdir()
    assert_is(restore(saved), 3)
    assert temporary.exists()
    store = CheckpointStore(saved, keep=2)
    store.save(4, tree(4))
    assert not temporary.exists()
    assert_is(restore(saved), 4)


@pytest.mark.parametrize("spec", [PartitionSpec(), PartitionSpec("data")])
def test_the_digest_is_that_of_the_whole_array(spec):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    placed = jax.device_put(np.arange(16.0, dtype="f"), NamedSharding(mesh, spec))
    assert digest(placed) == digest(np.arange(16.0, dtype="f"))


def test_a_digest_tells_bytes_shapes_and_dtypes_apart():
    arrays = [
        np.zeros(4, "f"), np.zeros((2, 2), "f"), np.zeros(4, "i4"), -np.zeros(4, "f"),
        np.zeros(0, "f"), np.float32(0),
    ]  # fmt: skip
    assert len({digest(x) for x in arrays}) == len(arrays)
    assert digest(np.arange(4).reshape(2, 2).T) == digest(np.array([[0, 2], [1, 3]]))


def test_a_leaf_too_many_or_too_few_is_named():
    whole = tree(0)
    wanted = tree_digests(whole)
    check_digests(whole, wanted)
    check_digests(whole, wanted | {"['position']": None})  # spread over processes when saved
    for other in ({"params": whole["params"]}, whole | {"position2": jnp.int32(0)}):
        with pytest.raises(ValueError, match=r"\['position2?'\] was not saved, or is not loaded"):
            check_digests(other, wanted)


def test_another_structure_is_an_error(saved):
    store = CheckpointStore(saved, keep=2)
    with pytest.raises(ValueError, match="can be read"):
        store.restore({"params": {"other": jnp.zeros(2)}})
