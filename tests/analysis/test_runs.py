# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
import json
import logging

import numpy as np
import pytest

from phasejax.analysis.runs import load_runs, read_run
from phasejax.evals.results import read_result, write_result

from .conftest import DOCUMENTS, PLANTED, M, config_of, make_run


def test_all_runs_below_a_directory_are_found_controls_first(quick_runs):
    runs = load_runs(quick_runs.parent)
    names = [run.name for run in runs if run.workdir.is_relative_to(quick_runs)]
    assert sorted(names) == sorted(PLANTED)
    assert names[0] == "full"
    assert names.index("w8s8") < names.index("w8s8_uniform")


def test_a_run_says_what_it_is(quick_runs):
    run = read_run(quick_runs / "w8s4-0")
    assert (run.window, run.stride, run.seed, run.is_control) == (8, 4, 0, False)
    assert run.recipe == "easy"
    assert run.variant.label == "W8/S4"
    assert sorted(run.results) == ["in_sequence", "prefix"]
    assert run.val_loss == pytest.approx(0.5 + sum(PLANTED["w8s4"]) / 99)
    assert run.metrics[-1]["step"] == 1500
    correct, position = run.tables("in_sequence")
    assert correct.shape == position.shape == (DOCUMENTS, M)
    np.testing.assert_array_equal(position[0] % M, np.arange(M))


def test_a_control_has_no_window(quick_runs):
    run = read_run(quick_runs / "full-0")
    assert run.is_control
    assert run.window is run.stride is run.geometry is None
    assert run.straddle_free_phases() == ()


@pytest.mark.parametrize(
    ("name", "separation", "phases"),
    [
        ("w8s8", 0, (0, 1, 2, 3, 4, 5, 6)),
        ("w8s8", 2, (0, 1, 2, 3, 4)),
        ("w2s2", 0, (0,)),
        ("w2s2", 1, ()),
        ("w8s4", 0, (0, 1, 2, 3)),
        ("w8s4", 3, (0, 1, 2, 3)),
        ("w8s6", 2, (0, 1, 2, 3, 4)),
    ],
)
def test_phases_whose_key_and_value_share_an_entry(tmp_path, name, separation, phases):
    profile = (0.5, 0.9)
    workdir = make_run(tmp_path, name, profile=profile, documents=2, separation=separation)
    assert read_run(workdir).straddle_free_phases() == phases


@pytest.fixture
def broken(tmp_path):
    make_run(tmp_path, "full", documents=2)
    return make_run(tmp_path, "w8s8", documents=2)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", "{", "config.json is not the config of a run"),
        ("config.json", json.dumps({"name": "w8s8"}), "config.json .*seed is None"),
        ("results/prefix.csv", "document\n0", "prefix.csv is not the file"),
        ("results/prefix.json", "{}", "prefix.json has format None"),
        ("results/in_sequence.json", "", "in_sequence.json is not complete JSON"),
    ],
)
def test_a_broken_file_is_named(broken, caplog, file, content, message):
    (broken / file).write_text(content)
    with pytest.raises(ValueError, match=message):
        load_runs(broken.parent)
    with caplog.at_level(logging.WARNING):
        assert [run.name for run in load_runs(broken.parent, strict=False)] == ["full"]
    assert file.split("/")[-1] in caplog.text


def test_a_truncated_result_names_the_command_that_makes_it_again(broken):
    table = broken / "results/in_sequence.csv"
    table.write_text(table.read_text()[:-20])
    with pytest.raises(ValueError, match="cut off") as caught:
        read_run(broken)
    assert f"python -m scripts.evaluate --workdir={broken}" in str(caught.value)
    for path in (broken / "results").glob("prefix.*"):
        path.unlink()
    with pytest.raises(
        ValueError, match=f"'prefix': python -m scripts.evaluate --workdir={broken}"
    ):
        read_run(broken)


def test_a_missing_half_of_a_result_is_an_error(broken):
    (broken / "results/in_sequence.csv").unlink()
    with pytest.raises(ValueError, match="in_sequence.csv is missing: run the evaluation"):
        load_runs(broken.parent)
    for path in (broken / "results").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match="has no evaluation 'prefix'"):
        load_runs(broken.parent)


def test_rows_that_are_not_crossed_are_an_error(broken):
    result = read_result(broken / "results", "prefix")
    rows = {name: column[1:] for name, column in result.rows.items()}
    write_result(broken / "results", "prefix", rows, result.meta)
    with pytest.raises(
        ValueError, match=r"rows are not crossed.*\(prefix: python -m scripts.evaluate"
    ):
        load_runs(broken.parent)


def test_a_result_of_another_config_is_an_error(broken):
    result = read_result(broken / "results", "in_sequence")
    meta = result.meta | {"config": result.meta["config"] | {"window": 4}}
    write_result(broken / "results", "in_sequence", result.rows, meta)
    with pytest.raises(
        ValueError,
        match=r"of another config \(window: 4 there, 8 in config.json\).*\(in_sequence: python -m",
    ):
        load_runs(broken.parent)


def test_a_last_line_that_was_cut_off_is_left_out(broken, caplog):
    with (broken / "metrics.jsonl").open("a") as file:
        file.write('{"step": 15')
    assert read_run(broken).metrics[-1]["step"] == 1500
    assert "is damaged and was left out" in caplog.text


def test_a_run_without_metrics_or_in_training_is_no_error(broken):
    (broken / "metrics.jsonl").unlink()
    training = broken.parent / "later"
    training.mkdir()
    (training / "config.json").write_text(json.dumps(config_of("w4s4", 0)))
    runs = load_runs(broken.parent)
    assert [run.name for run in runs] == ["full", "w8s8"]
    assert runs[1].metrics == []
    assert runs[1].training_seconds() == (0, 0)


def test_compiling_is_what_the_first_interval_of_a_stage_takes_longer(quick_runs):
    # 31 intervals of 2.5 s; the stages begin at 0, 500 and 1000, and the last has one interval.
    train, compiling = load_runs(quick_runs)[0].training_seconds()
    assert (train, compiling) == (31 * 2.5 + 4 * 5, 3 * 5)


def test_runs_of_a_recipe_with_other_settings_are_told_apart(tmp_path):
    make_run(tmp_path, "w8s8", documents=2)
    make_run(tmp_path, "full", documents=2, width=128, eval_documents=2)
    make_run(tmp_path, "w4s4", documents=2, width=64, keep_checkpoints=1)
    make_run(tmp_path, "w2s2", documents=2, width=128, recipe="hard")
    runs = {run.name: run.recipe for run in load_runs(tmp_path)}
    assert runs == {
        "full": "easy, width 128",
        "w4s4": "easy, width 64",
        "w8s8": "easy",
        "w2s2": "hard",
    }


def test_a_directory_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="is not a directory"):
        load_runs(tmp_path / "nowhere")
    assert load_runs(tmp_path) == []
