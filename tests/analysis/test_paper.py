# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Every number that the paper prints follows from the data that the project holds."""

import numpy as np
import pytest

from phasejax.analysis.paper import needle_rows, paper_runs, paper_runs_like
from phasejax.analysis.variants import Variant, variant_of

# name, loss, mean, worst and gap with prefix padding, then with in-sequence padding
PRINTED = """
W8/S8, 1 KV, seed 42|2.478|50.56|5.7|75.3|27.61|3.4|44.0
W8/S8, 1 KV, seed 43|2.482|32.11|2.5|59.2|15.63|1.5|28.9
W8/S8, 1 KV, seed 44|2.477|56.09|11.6|70.3|35.46|6.5|54.4
W8/S8, 1 KV, seed 45|2.478|40.47|15.6|36.6|11.39|5.2|20.1
W4/S4, 1 KV|2.469|38.46|8.0|50.5|37.52|8.9|43.3
W8/S4, 1 KV|2.467|66.87|46.2|39.8|49.26|13.7|61.8
W8/S6, 1 KV|2.470|53.45|38.5|31.9|37.50|23.0|26.4
W12/S12, 1 KV|2.487|32.95|5.0|63.2|16.01|2.3|32.0
W8/S8, 2 KV|2.465|58.30|9.8|76.8|52.36|14.0|50.6
W8/S8, 4 KV|2.448|68.73|13.6|78.0|63.33|4.9|88.7
W8/S8, 8 KV|2.431|59.36|9.9|71.1|49.11|10.0|59.8
W8/S8, 1 KV, tied K/V|2.495|21.77|3.6|39.1|31.25|15.2|34.6
W8/S8, 1 KV, uniform averaging|2.497|12.54|4.7|19.2|19.05|5.3|37.0
W8/S8, 1 KV, uniform averaging, tied K/V, post-norm|2.503|18.63|1.9|39.3|16.48|3.9|23.3
W8/S8, 1 KV, vector gates|2.478|19.41|4.0|34.0|12.74|2.3|25.7
W8/S8, 1 KV, no Q/K norm|2.485|38.53|23.8|34.6|20.39|11.8|25.0
W8/S8, 1 KV, no gate bias|2.479|34.32|4.4|60.7|41.96|5.3|63.2
W8/S8, 1 KV, no RoPE|2.504|29.40|5.0|40.9|25.99|4.9|40.0
W8/S8, 1 KV, RoPE on 16 dims|2.482|74.23|32.9|57.2|69.39|45.1|39.0
W8/S8, 1 KV, uncompressed tail|2.520|75.05|57.4|33.9|41.80|28.4|28.1
W8/S8, 8 KV, uncompressed tail|2.460|53.04|25.5|49.3|27.77|7.5|40.9
W8/S4, 1 KV, DeepSeek-style kernel|2.476|35.59|18.7|38.3|37.52|26.8|26.0
W8/S4, 1 KV, DeepSeek-style kernel, scalar gates|2.473|21.50|14.2|18.7|30.38|17.5|25.8
Full attention, 1 KV|2.466|18.75|17.2|3.1
Full attention, 4 KV|2.448|47.05|44.8|6.1
Full attention, 8 KV|2.437|61.06|58.4|4.3
"""
ROWS = [line.split("|") for line in PRINTED.strip().splitlines()]

FOLDED = {
    "W8/S8, 1 KV, seed 42": (66.7, 71.6, 78.7, 45.0, 47.3, 24.3, 64.7, 6.2),
    "W8/S4, 1 KV": (48.1, 84.5, 54.2, 80.6),
    "W4/S4, 1 KV": (36.6, 57.4, 51.3, 8.5),
    "W8/S6, 1 KV": (43.8, 61.9, 56.8, 39.6, 49.1, 69.5),
    "W8/S4, 1 KV, DeepSeek-style kernel": (19.6, 27.1, 55.7, 39.9),
    "W8/S8, 1 KV, uncompressed tail": (67.3, 91.0, 85.0, 84.3, 70.8, 69.1, 74.1, 58.9),
}

NEEDLE = {
    "DeepSeek-V4-Flash-Base": (43.75, 69.53, 66.02, 29.69, 44.92, 69.92, 64.45, 32.81),
    "DeepSeek-V4-Flash-0731": (80.47, 88.67, 98.05, 96.48, 81.25, 90.23, 99.61, 96.09),
    "DeepSeek-V4-Pro-Base": (60.94, 88.28, 78.91, 56.25, 62.50, 91.02, 80.47, 58.20),
    "DeepSeek-V4-Pro-0813": (78.12, 89.84, 91.41, 77.34, 77.34, 89.45, 92.19, 79.69),
    "DeepSeek-V4.1-Flash": (95.00, 89.22, 95.12, 89.69, 94.69, 90.31, 95.31, 89.73),
}
NEEDLE_MEAN_WORST_GAP = {
    "DeepSeek-V4-Flash-Base": (52.64, 29.69, 40.23),
    "DeepSeek-V4-Flash-0731": (91.36, 80.47, 19.14),
    "DeepSeek-V4-Pro-Base": (72.07, 56.25, 34.77),
    "DeepSeek-V4-Pro-0813": (84.42, 77.34, 14.84),
    "DeepSeek-V4.1-Flash": (92.38, 89.22, 6.09),
}


def test_all_runs_are_there_in_order():
    assert [run.name for run in paper_runs()] == [row[0] for row in ROWS]
    assert sum(run.variant.is_control for run in paper_runs()) == 3


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_printed_numbers_follow_from_the_accuracies(row):
    run = next(run for run in paper_runs() if run.name == row[0])
    loss, *numbers = map(float, row[1:])
    assert run.loss == loss
    profiles = [run.prefix] if run.in_sequence is None else [run.prefix, run.in_sequence]
    assert len(numbers) == 3 * len(profiles)
    for profile, (mean, worst, gap) in zip(profiles, np.reshape(numbers, (-1, 3)), strict=True):
        assert len(profile.accuracy) == 24
        assert profile.mean == mean
        assert profile.gap == gap
        assert np.mean(profile.accuracy) == pytest.approx(mean, abs=0.06)
        assert profile.worst == worst
        assert np.ptp(profile.accuracy) == pytest.approx(gap, abs=0.11)
        if profile.gap_interval is not None:
            assert profile.gap_interval[0] <= gap <= profile.gap_interval[1]
            assert profile.mean_interval[0] <= mean <= profile.mean_interval[1]


@pytest.mark.parametrize("name", FOLDED)
def test_folded_profiles(name):
    run = next(run for run in paper_runs() if run.name == name)
    folded = run.prefix.folded(run.variant.stride)
    np.testing.assert_allclose(folded, FOLDED[name], atol=0.06)


@pytest.mark.parametrize("row", needle_rows(), ids=lambda row: row.name)
def test_needle_rows_follow_from_the_counts(row):
    np.testing.assert_allclose(row.accuracy, NEEDLE[row.name], atol=0.0051)
    numbers = (row.accuracy.mean(), row.accuracy.min(), np.ptp(row.accuracy))
    np.testing.assert_allclose(numbers, NEEDLE_MEAN_WORST_GAP[row.name], atol=0.0051)


def test_needle_intervals_are_wilson():
    low, high = needle_rows()[0].interval
    assert (low[0], high[0]) == (pytest.approx(37.81, abs=0.005), pytest.approx(49.87, abs=0.005))


CONFIGS = {
    "W8/S8, 1 KV, uniform averaging": {"gate": "uniform"},
    "W8/S8, 2 KV": {"num_kv_heads": 2},
    "W8/S8, 1 KV, RoPE on 16 dims": {"rope_fraction": 0.125},
    "W8/S8, 1 KV, no RoPE": {"rope_fraction": 0.0},
    "W8/S8, 1 KV, uncompressed tail": {"exact_tokens": "tail"},
    "W8/S4, 1 KV": {"stride": 4},
    "W8/S4, 1 KV, DeepSeek-style kernel": {
        "stride": 4,
        "gate": "vector",
        "tie_kv": True,
        "rope_fraction": 0.125,
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_finds_its_run_in_the_paper(name):
    variant = variant_of({"attention": "compressed", "window": 8} | CONFIGS[name])
    assert [run.name for run in paper_runs_like(variant)] == [name]


def test_the_default_has_four_seeds_and_others_none():
    base = {"attention": "compressed", "window": 8, "stride": None}
    assert [run.seed for run in paper_runs_like(variant_of(base))] == [42, 43, 44, 45]
    assert not paper_runs_like(variant_of(base | {"window": 6}))
    assert not paper_runs_like(variant_of(base | {"separation": 2}))
    controls = paper_runs_like(variant_of({"attention": "full", "window": 8, "gate": "scalar"}))
    assert [run.name for run in controls] == ["Full attention, 1 KV"]


def test_labels_tell_variants_apart():
    labels = {run.variant.label for run in paper_runs()}
    assert len(labels) == 26 - 3  # the four seeds share one
    assert Variant("compressed", 8, 8, gate="uniform").label == "W8/S8, uniform averaging"


@pytest.mark.parametrize("config", [{}, {"attention": "half"}, {"attention": "compressed"}])
def test_a_config_without_attention_or_window_is_refused(config):
    with pytest.raises(ValueError, match="attention|window"):
        variant_of(config)
