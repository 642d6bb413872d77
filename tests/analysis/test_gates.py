# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
import json
import shutil

import numpy as np
import pytest

from phasejax.analysis.gates import concentration, gate_mass_by_phase
from phasejax.compress.geometry import WindowGeometry
from phasejax.evals.gates import load_gates, save_gates


def softmax_gates(windows=50, window=8, heads=2, channels=1, seed=0):
    logits = np.random.default_rng(seed).normal(size=(windows, window, heads, channels))
    weights = np.exp(logits)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def one_hot(offsets, window=8):
    gates = np.zeros((len(offsets), window, 1, 1))
    gates[np.arange(len(offsets)), offsets] = 1.0
    return gates


@pytest.fixture
def path(tmp_path):
    layers = {0: {"key": softmax_gates(), "value": softmax_gates(seed=1)}}
    layers |= {11: {"key": softmax_gates(channels=4)}}
    save_gates(tmp_path / "gates.zarr", layers, WindowGeometry(8, 4))
    return tmp_path / "gates.zarr"


def test_captures_are_read_back(path):
    gates = load_gates(path)
    assert gates.geometry == WindowGeometry(8, 4)
    assert {k: sorted(v) for k, v in gates.layers.items()} == {0: ["key", "value"], 11: ["key"]}
    np.testing.assert_array_equal(gates.layers[0]["value"], softmax_gates(seed=1))
    assert gates.layers[11]["key"].shape == (50, 8, 2, 4)
    assert gates.layers[11]["key"].dtype == np.float32


def test_saving_replaces(path):
    save_gates(path, {0: {"key": softmax_gates(3)}}, WindowGeometry(8, 8))
    assert list(load_gates(path).layers) == [0]
    assert not (path / "layer_11").exists()


def test_it_is_a_zarr_group_that_other_readers_know(path):
    assert json.loads((path / "zarr.json").read_text())["node_type"] == "group"
    array = json.loads((path / "layer_00/key/zarr.json").read_text())
    assert (array["zarr_format"], array["node_type"], array["data_type"]) == (3, "array", "float32")


def test_a_missing_chunk_is_noticed(path):
    shutil.rmtree(path / "layer_00/key/c")  # TensorStore reads zeros here
    with pytest.raises(ValueError, match="layer_00/key does not sum to one .* capture the gates"):
        load_gates(path)


@pytest.mark.parametrize("name", ["zarr.json", "layer_00/key/zarr.json"])
@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_damaged_metadata_is_named(path, name, damage):
    text = (path / name).read_text()
    (path / name).unlink()
    if damage == "truncated":
        (path / name).write_text(text[:20])
    with pytest.raises(ValueError, match=f"{name.removesuffix('/zarr.json')}.* capture the gates"):
        load_gates(path)


def test_what_is_not_a_gate_is_refused(tmp_path):
    geometry = WindowGeometry(8, 8)
    with pytest.raises(ValueError, match="W=8"):
        save_gates(tmp_path / "g", {0: {"key": softmax_gates(window=4)}}, geometry)
    with pytest.raises(ValueError, match="sum to one"):
        save_gates(tmp_path / "g", {0: {"key": 2 * softmax_gates()}}, geometry)
    with pytest.raises(ValueError, match="no gates"):
        save_gates(tmp_path / "g", {}, geometry)
    assert not (tmp_path / "g").exists()


# The acceptance checks of the paper's section on concentration.


def test_a_uniform_gate_counts_all_offsets():
    static, per_window = concentration(np.full((10, 8, 2, 1), 1 / 8))
    np.testing.assert_allclose([static, per_window], 8.0)


def test_a_constant_one_hot_gate_counts_one():
    static, per_window = concentration(one_hot([3] * 10))
    np.testing.assert_allclose([static, per_window], 1.0)


def test_a_switching_one_hot_gate_is_concentrated_in_each_window_only():
    static, per_window = concentration(one_hot(list(range(8)) * 2))
    np.testing.assert_allclose(static, 8.0)
    np.testing.assert_allclose(per_window, 1.0)


def test_per_window_is_at_most_static():
    static, per_window = concentration(softmax_gates(channels=3))
    assert static.shape == per_window.shape == (2,)
    assert (per_window <= static).all()
    assert (per_window >= 1).all()
    assert (static <= 8).all()


@pytest.mark.parametrize("stride", [8, 6, 4, 2])
def test_uniform_gates_give_every_phase_its_share(stride):
    mass = gate_mass_by_phase(np.full((5, 8, 2, 1), 1 / 8), WindowGeometry(8, stride))
    np.testing.assert_allclose(mass, np.ones((stride, 2)))


def test_overlapping_offsets_of_a_phase_add_up():
    mass = gate_mass_by_phase(one_hot([1, 5]), WindowGeometry(8, 4))
    np.testing.assert_allclose(mass[:, 0], [0, 4, 0, 0])
    uneven = gate_mass_by_phase(
        one_hot([5]), WindowGeometry(8, 6)
    )  # phases 0 and 1 have two offsets
    np.testing.assert_allclose(uneven[:, 0], [0, 0, 0, 0, 0, 8])
    np.testing.assert_allclose(gate_mass_by_phase(one_hot([7]), WindowGeometry(8, 6))[1], 4)


def test_gates_of_another_window_are_refused():
    with pytest.raises(ValueError, match="those of a window of 6 tokens"):
        gate_mass_by_phase(softmax_gates(), WindowGeometry(6, 6))
