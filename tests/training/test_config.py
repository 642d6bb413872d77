# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs that are refused before anything is compiled, and the flat view of those that are not."""

import importlib
import json
from pathlib import Path

import pytest

from configs.presets import PRESETS
from phasejax.training.config import RunConfig, Stage, TrainConfig, stage_task

CONFIGS = sorted(path.stem for path in Path("configs/laptop").glob("*.py") if path.stem != "common")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"widow": 4}, r"Unknown config field 'widow': did you mean 'window'"),
        ({"local_windw": 4}, r"did you mean 'local_window'"),
        ({"vocab_size": 20}, r"Unknown config field 'vocab_size'"),
        ({"zzzz": 1}, r"Unknown config field 'zzzz': choose one of .*window"),
        ({"window": 20, "stride": 4, "local_window": 19}, r"window=20 is larger than context=16"),
        ({"residues": 3, "context": 16}, r"residues=3 is not a multiple of stride=4"),
        ({"window": 2, "stride": 4}, r"window=2 is smaller than stride=4"),
        ({"context": 12}, r"context=12 is too short: 1 records of 2 tokens"),
        ({"final_steps": 10}, r"final_steps=10 is not a positive multiple of check_every=4"),
        ({"checkpoint_every": 6}, r"checkpoint_every=6 is not a positive multiple"),
        ({"checkpoint_every": 0}, r"checkpoint_every=0 is not a positive multiple"),
        ({"curriculum": ((1, 4, 16, 7),)}, r"curriculum\[0\]\.max_steps=7 .* check_every=4"),
        ({"curriculum": ((1, 4, 16, 8), (1, 4, 16, 0))}, r"curriculum\[1\]\.max_steps=0"),
        ({"curriculum": ((1, 3, 16, 8),)}, r"span=3 is too short: 1 records.*need 4 tokens"),
        ({"curriculum": ((1, 17, 16, 8),)}, r"span=17 is not within 1 \.\. context=16"),
        ({"curriculum": ((3, 12, 16, 8),)}, r"num_keys=2 is smaller than num_records=3"),
        ({"batch_size": 0}, r"batch_size=0"),
        ({"microbatch_tokens": 0}, r"microbatch_tokens=0"),
        ({"warmup_steps": 0}, r"warmup_steps=0"),
        ({"keep_checkpoints": 0}, r"keep_checkpoints=0"),
        ({"eval_documents": 0}, r"eval_documents=0"),
        ({"eval_batch": 0}, r"eval_batch=0"),
        ({"gate_documents": 0}, r"gate_documents=0"),
    ],
)
def test_what_does_not_fit_is_refused(tiny, changes, message):
    with pytest.raises(ValueError, match=message):
        tiny(**changes)


def test_a_stage_without_all_its_numbers_is_refused(tiny):
    # Past the type check of the constructor, which only tests have.
    train = object.__new__(TrainConfig)
    vars(train).update(vars(tiny().train) | {"curriculum": ((1, 4, 16),)})
    with pytest.raises(ValueError, match=r"every stage is \(num_records, span, context, max_steps"):
        train.__post_init__()


@pytest.mark.parametrize("name", ["name", "recipe", "seed"])
def test_a_run_has_a_name_a_recipe_and_a_seed(tiny, name):
    flat = tiny().flat()
    del flat[name]
    with pytest.raises(ValueError, match=rf"lacks the field '{name}'"):
        RunConfig.from_flat(flat)


def test_the_flat_view_is_json_and_leads_back(tiny):
    config = tiny()
    flat = json.loads(json.dumps(config.flat()))
    assert RunConfig.from_flat(flat) == config
    assert flat["curriculum"] == [[1, 4, 16, 8]]
    assert "vocab_size" not in flat
    assert config.model.vocab_size == 2 + 2 + 3
    changed = RunConfig.from_flat(flat | {"window": 2})
    assert (changed.model.window, changed.model.geometry.stride) == (2, 2)


def test_a_stage_is_the_task_with_fewer_records(tiny):
    task = tiny().task
    found = stage_task(task, Stage(1, 6, 14, 8))
    assert (found.num_records, found.span, found.context) == (1, 6, 14)
    assert (found.num_keys, found.separation) == (task.num_keys, task.separation)


def test_a_microbatch_is_the_largest_divisor_that_fits(tiny):
    train = tiny(batch_size=12, microbatch_tokens=100).train
    assert [train.microbatch(length) for length in (8, 9, 16, 17, 25, 26, 50, 51, 999)] == [
        12, 6, 6, 4, 4, 3, 2, 1, 1
    ]  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_file_is_a_run_of_its_name(name):
    module = importlib.import_module(f"configs.laptop.{name}")
    config = RunConfig.from_flat(module.get_config().to_dict())
    assert config.name == name
    assert f"--config=configs/laptop/{name}.py" in module.__doc__
    assert config.task.residues == 24
    assert (config.model.attention == "full") == name.startswith("full")


def test_every_run_of_a_preset_has_a_file_and_a_control():
    for preset in PRESETS.values():
        assert set(preset.names) <= set(CONFIGS)
        assert any(name.startswith("full") for name in preset.names)
    assert set(PRESETS["full"].names) == set(CONFIGS)
