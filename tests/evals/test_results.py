# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
import json
import shlex

import numpy as np
import pytest

from phasejax.evals import results
from phasejax.evals.results import (
    COLUMNS,
    correct_matrix,
    read_result,
    versions,
    write_result,
)

META = {"config": {"name": "w8s8", "seed": 3}, "checkpoint_step": 10, "val_loss": 0.25}


def crossed_rows(documents: int = 5, residues: int = 6) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    document, residue = (i.ravel() for i in np.indices((documents, residues)))
    rows = {name: rng.integers(0, 50, size=document.size) for name in COLUMNS}
    rows |= {"document": document, "residue": residue}
    rows["target_position"] = residue + residues * rng.integers(1, 4, size=document.size)
    rows["correct"] = rng.integers(0, 2, size=document.size)
    rows["loss"] = rng.random(document.size).astype(np.float32)
    return rows


@pytest.fixture
def folder(tmp_path):
    write_result(tmp_path / "results", "prefix", crossed_rows(), META)
    return tmp_path / "results"


def test_what_is_written_is_read_back(folder):
    rows, result = crossed_rows(), read_result(folder, "prefix")
    assert list(result.rows) == list(COLUMNS)
    for name in COLUMNS:
        np.testing.assert_array_equal(result.rows[name].astype(rows[name].dtype), rows[name])
    assert result.rows["loss"].dtype == np.float64
    assert result.rows["document"].dtype == np.int64


def test_meta_says_what_was_run_and_with_what(folder):
    meta = read_result(folder, "prefix").meta
    assert meta["format"] == 1
    assert meta["condition"] == "prefix"
    assert meta["config"] == META["config"]
    assert meta["rows"] == 30
    assert meta["versions"] == versions()
    assert {"python", "jax", "flax", "numpy", "scipy", "phasejax", "platform"} == set(versions())
    assert {"created", "sha256", "val_loss", "checkpoint_step"} <= set(meta)


def test_writing_leaves_no_other_file_and_replaces(folder):
    write_result(folder, "prefix", crossed_rows(2), META)
    assert sorted(path.name for path in folder.iterdir()) == ["prefix.csv", "prefix.json"]
    assert read_result(folder, "prefix").meta["rows"] == 12


def test_a_crash_between_the_two_files_is_noticed(folder, monkeypatch):
    write = results.write_atomic

    def crash(path, text):
        if path.suffix == ".json":
            raise KeyboardInterrupt
        write(path, text)

    monkeypatch.setattr(results, "write_atomic", crash)
    with pytest.raises(KeyboardInterrupt):
        write_result(folder, "prefix", crossed_rows(2), META)
    with pytest.raises(ValueError, match=r"prefix\.csv is not the file .* run the evaluation"):
        read_result(folder, "prefix")


@pytest.mark.parametrize("name", ["prefix.csv", "prefix.json"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "altered"])
def test_a_damaged_file_is_named_with_the_remedy(folder, name, damage):
    path = folder / name
    text = path.read_text()
    path.unlink()
    if damage == "truncated":
        path.write_text(text[: len(text) // 2])
    elif damage == "altered":
        path.write_text(text.replace("0,", "1,", 1) if name.endswith("csv") else text + "}")
    with pytest.raises(
        ValueError, match=r"prefix\.\w+ .*run the evaluation of this run again"
    ) as caught:
        read_result(folder, "prefix")
    assert f"python -m scripts.evaluate --workdir={folder.parent}" in str(caught.value)


def test_the_remedy_can_be_pasted_into_a_shell(tmp_path):
    run = tmp_path / "my run" / "w8s8; rm"
    with pytest.raises(ValueError, match="is missing") as caught:
        read_result(run / "results", "prefix")
    assert shlex.split(str(caught.value).split("again, ")[1])[-1] == f"--workdir={run}"


def test_another_format_is_refused(folder):
    path = folder / "prefix.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    with pytest.raises(ValueError, match="has format 2, but this version reads 1"):
        read_result(folder, "prefix")


def test_other_columns_are_refused(tmp_path):
    rows = crossed_rows()
    del rows["loss"]
    with pytest.raises(ValueError, match="loss"):
        write_result(tmp_path, "prefix", rows, META)
    with pytest.raises(ValueError, match="one length"):
        write_result(tmp_path, "prefix", crossed_rows() | {"loss": np.zeros(3)}, META)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", [float("nan"), np.zeros(2)])
def test_meta_that_is_not_json_is_refused_before_anything_is_written(tmp_path, value):
    with pytest.raises(ValueError, match="not plain JSON"):
        write_result(tmp_path, "prefix", crossed_rows(), META | {"moments": value})
    assert not list(tmp_path.iterdir())


def test_matrix_does_not_depend_on_the_order_of_rows():
    rows = crossed_rows()
    order = np.random.default_rng(1).permutation(30)
    correct, position = correct_matrix({name: column[order] for name, column in rows.items()})
    np.testing.assert_array_equal(correct, rows["correct"].reshape(5, 6))
    np.testing.assert_array_equal(position, rows["target_position"].reshape(5, 6))
    np.testing.assert_array_equal(position % 6, np.tile(np.arange(6), (5, 1)))


@pytest.mark.parametrize("change", ["drop", "repeat", "twice", "none"])
def test_rows_that_are_not_crossed_are_refused(change):
    keep = {
        "drop": np.arange(1, 30),
        "repeat": np.r_[0, 0, 2:30],
        "twice": np.r_[0, 0:30],
        "none": np.arange(0),
    }[change]
    rows = {name: column[keep] for name, column in crossed_rows().items()}
    with pytest.raises(ValueError, match="not crossed"):
        correct_matrix(rows)
