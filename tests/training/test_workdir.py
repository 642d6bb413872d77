# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""A run's folder: whose it is, and what it logged."""

import json

import pytest

from phasejax.training.metrics import METRICS_FILE, MetricsLog, read_metrics
from phasejax.training.workdir import CONFIG_FILE, claim_workdir, read_config


def test_a_folder_belongs_to_the_first_run(tiny, tmp_path):
    folder = tmp_path / "deep" / "run"
    claim_workdir(folder, tiny())
    claim_workdir(folder, tiny())
    assert read_config(folder) == tiny()
    assert [path.name for path in folder.iterdir()] == [CONFIG_FILE]


def test_another_config_is_refused_naming_the_fields(tiny, tmp_path):
    claim_workdir(tmp_path, tiny())
    before = (tmp_path / CONFIG_FILE).read_bytes()
    with pytest.raises(ValueError, match="holds a run of another config") as error:
        claim_workdir(tmp_path, tiny(window=2, seed=5))
    assert "window: 4 there, 2 asked" in str(error.value)
    assert "seed: 0 there, 5 asked" in str(error.value)
    assert "local_window" not in str(error.value)
    assert (tmp_path / CONFIG_FILE).read_bytes() == before


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(ValueError, match=r"holds no run: .*config\.json is missing"):
        read_config(tmp_path)


def test_a_damaged_config_is_named(tiny, tmp_path):
    claim_workdir(tmp_path, tiny())
    path = tmp_path / CONFIG_FILE
    path.write_text(path.read_text()[:50])
    for action in (lambda: read_config(tmp_path), lambda: claim_workdir(tmp_path, tiny())):
        with pytest.raises(ValueError, match=r"config\.json is not readable JSON"):
            action()


@pytest.mark.parametrize("content", ["[1, 2]", "3", '{"name": "a"}', "null"])
def test_json_that_is_no_config_is_refused(tmp_path, content):
    (tmp_path / CONFIG_FILE).write_text(content)
    with pytest.raises(ValueError, match="config"):
        read_config(tmp_path)


def test_rows_past_the_checkpoint_are_dropped(tmp_path):
    log = MetricsLog(tmp_path, resume_step=0)
    for step in (4, 8, 12):
        log.write({"step": step, "loss": 0.5})
    log.close()
    with (tmp_path / METRICS_FILE).open("a") as file:
        file.write('{"step": 16, "lo')  # killed while writing
    assert [row["step"] for row in read_metrics(tmp_path)] == [4, 8, 12]
    log = MetricsLog(tmp_path, resume_step=8)
    log.write({"step": 12, "loss": float("nan")})
    log.close()
    lines = (tmp_path / METRICS_FILE).read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": 4, "loss": 0.5},
        {"step": 8, "loss": 0.5},
        {"step": 12, "loss": None},
    ]


def test_no_metrics_yet(tmp_path):
    assert read_metrics(tmp_path) == []


def test_a_broken_line_among_metrics_is_said_and_nothing_is_dropped(tmp_path):
    text = '{"step": 4}\n{"st\n{"step": 12}\n'
    (tmp_path / METRICS_FILE).write_text(text)
    with pytest.raises(ValueError, match=rf"{METRICS_FILE}:2 is not a row of metrics"):
        MetricsLog(tmp_path, resume_step=12)
    assert (tmp_path / METRICS_FILE).read_text() == text
