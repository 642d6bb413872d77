# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs that are refused before anything is compiled, and the flat view of those that are not."""

import dataclasses
import importlib
import json
from pathlib import Path

import pytest

from configs.presets import PRESETS
from phasejax.models.deepseek_v4.presets import preset
from phasejax.models.deepseek_v4.rope import Yarn
from phasejax.tasks.crossed import crossed_design
from phasejax.training.config import GROUPS, RunConfig, Stage, stage_task
from tests.training.conftest import TINY

CONFIGS = sorted(path.stem for path in Path("configs/laptop").glob("*.py") if path.stem != "common")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"widow": 4}, r"Unknown config field 'widow': did you mean 'window'"),
        ({"local_windw": 4}, r"did you mean 'local_window'"),
        ({"vocab_size": 20}, r"Unknown config field 'vocab_size'"),
        ({"zzzz": 1}, r"Unknown config field 'zzzz': choose one of .*window"),
        ({"window": 24, "stride": 4, "local_window": 23}, r"window=24 is larger than context=20"),
        ({"residues": 3}, r"residues=3 is not a multiple of stride=4"),
        ({"window": 2, "stride": 4}, r"window=2 is smaller than stride=4"),
        ({"context": 12}, r"context=12 is too short: 3 records of 2 tokens"),
        ({"final_steps": 10}, r"final_steps=10 is not a positive multiple of check_every=4"),
        ({"checkpoint_every": 6}, r"checkpoint_every=6 is not a positive multiple"),
        ({"checkpoint_every": 0}, r"checkpoint_every=0 is not a positive multiple"),
        ({"curriculum": ((1, 4, 16, 7),)}, r"curriculum\[0\]\.max_steps=7 .* check_every=4"),
        ({"curriculum": ((1, 4, 16, 8), (1, 4, 16, 0))}, r"curriculum\[1\]\.max_steps=0"),
        ({"curriculum": ((1, 3, 16, 8),)}, r"span=3 is too short: 1 records.*need 4 tokens"),
        ({"curriculum": ((1, 17, 16, 8),)}, r"span=17 is not within 1 \.\. context=16"),
        ({"curriculum": ((5, 12, 16, 8),)}, r"num_keys=4 is smaller than num_records=5"),
        ({"batch_size": 0}, r"batch_size=0"),
        ({"microbatch_tokens": 0}, r"microbatch_tokens=0"),
        ({"warmup_steps": 0}, r"warmup_steps=0"),
        ({"keep_checkpoints": 0}, r"keep_checkpoints=0"),
        ({"eval_documents": 0}, r"eval_documents=0"),
        ({"eval_batch": 0}, r"eval_batch=0"),
        ({"gate_documents": 0}, r"gate_documents=0"),
        # What only the evaluation, the optimizer or the report would notice.
        ({"eval_documents": 1}, r"eval_documents=1, but it must be at least 2"),
        ({"eval_seed": -1}, r"eval_seed=-1, but it must be at least 0"),
        ({"seed": -1}, r"seed=-1, but it must be at least 0: raise seed"),
        ({"seed": 2**32}, r"seed=4294967296, but it must be below 4294967296: lower seed"),
        ({"name": ""}, r"name='' is blank: give the run a name"),
        ({"recipe": " "}, r"recipe=' ' is blank: give the run a recipe"),
        ({"residues": 1, "window": 1}, r"residues=1, but it must be at least 2"),
        ({"num_records": 2}, r"num_records=2, but with demonstrations=1 .* at least 3: .* Raise"),
        ({"demonstrations": 2}, r"num_records=3, but with demonstrations=2 .* at least 4"),
        ({"num_values": 1}, r"num_values=1, but with one value every answer is the same: raise"),
        ({"learning_rate": 0.0}, r"learning_rate=0\.0, but it must be above 0: raise"),
        ({"clip_norm": 0.0}, r"clip_norm=0\.0, but it must be above 0"),
        ({"b1": 1.0}, r"b1=1\.0, but it must be below 1: lower b1"),
        ({"b1": -0.1}, r"b1=-0\.1, but it must be at least 0"),
        ({"b2": 1.5}, r"b2=1\.5, but it must be below 1"),
        ({"b2": -0.1}, r"b2=-0\.1, but it must be at least 0"),
        ({"weight_decay": -0.1}, r"weight_decay=-0\.1, but it must be at least 0"),
        ({"advance_accuracy": -0.1}, r"advance_accuracy=-0\.1, but it must be at least 0"),
        ({"final_learning_rate": -0.1}, r"final_learning_rate=-0\.1, but it must be at least 0"),
    ],
)
def test_what_does_not_fit_is_refused(tiny, changes, message):
    with pytest.raises(ValueError, match=message):
        tiny(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"separation": 1, "context": 23, "curriculum": ()},
        {"num_records": 4, "context": 22},
        {"span": 19},
        {"demonstrations": 0, "context": 22},
    ],
    ids=str,
)
@pytest.mark.parametrize("exact", ["window", "tail"])
def test_a_target_that_a_query_could_read_exactly_is_refused(tiny, changes, exact):
    task = tiny(**changes).task
    drawn = crossed_design(task, 400, "prefix", 0)
    last_value = drawn.position.max() + 1 + task.separation
    distance = int(task.query_positions[-1] - last_value)
    name = "window" if exact == "tail" else "local_window"
    fixed = {"exact_tokens": exact, "local_window": 16} if exact == "tail" else {}
    fixed |= {"residues": 4, "stride": 4} | changes
    assert 4 < distance < 16
    assert tiny(**fixed | {name: distance})
    message = rf"stand {distance} tokens before the query, within the {distance + 1} that"
    with pytest.raises(ValueError, match=message):
        tiny(**fixed | {name: distance + 1})


def test_full_attention_reads_every_target():
    full = {key: value for key, value in TINY.items() if key not in ("window", "local_window")}
    assert RunConfig.from_flat(full | {"attention": "full", "demonstrations": 0})


def test_every_field_of_every_config_has_a_kind(tiny):
    """Past the constructors, whose types beartype checks in tests alone."""
    run, other = tiny(), preset("deepseek_v4_tiny")
    for config in (run, *(getattr(run, group) for group in GROUPS), other, Yarn()):
        for field in dataclasses.fields(config):
            made = object.__new__(type(config))
            vars(made).update(vars(config) | {field.name: object()})
            message = rf"{field.name}=<object .* \(object\), but it must be"
            with pytest.raises(ValueError, match=message):
                made.__post_init__()


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
    assert config.model.vocab_size == 2 + 4 + 3
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


def test_the_deepseek_style_kernel_is_the_overlap_with_the_papers_changes_alone():
    base, *kernels = (
        importlib.import_module(f"configs.laptop.{name}").get_config().to_dict()
        for name in ("w8s4", "w8s4_deepseek", "w8s4_deepseek_scalar")
    )
    changes = {"tie_kv": True, "rope_fraction": 0.125}
    for kernel, gate in zip(kernels, ("vector", "scalar"), strict=True):
        assert kernel == base | changes | {"name": kernel["name"], "gate": gate}
    for kernel in kernels:  # where DeepSeek-V4 itself puts entries is a run of its own
        assert kernel["rotary_anchor"] == "window_start"
        assert RunConfig.from_flat(kernel | {"rotary_anchor": "stride_start"})


def test_every_run_of_a_preset_has_a_file_and_a_control():
    for chosen in PRESETS.values():
        assert set(chosen.names) <= set(CONFIGS)
        assert any(name.startswith("full") for name in chosen.names)
    assert set(PRESETS["full"].names) == set(CONFIGS)
