# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json
import math

import numpy as np
import pytest

from phasejax.analysis.runs import load_runs, read_run
from phasejax.analysis.seeds import between_seeds, summarize_variants
from phasejax.analysis.summary import (
    plain,
    summarize,
    summarize_evaluation,
    summarize_gates,
    summarize_run,
)
from phasejax.analysis.verdicts import AT_CEILING, NO_PERIOD, NOT_LEARNED, verdict
from phasejax.compress.geometry import WindowGeometry
from phasejax.evals.gates import save_gates
from phasejax.statistics import accuracy_profile, estimate_gap, known_period_test, scan_periods

from .conftest import DOCUMENTS, IN_SEQUENCE, PLANTED, M, gates_of, make_run

REQUIRED = {
    "name",
    "window",
    "stride",
    "seed",
    "val_loss",
    "mean",
    "worst",
    "gap",
    "gap_low",
    "gap_high",
    "gap_folded",
    "period",
    "p_value",
    "p_known_stride",
    "mean_low",
    "mean_high",
    "worst_low",
    "worst_high",
    "gap_corrected",
    "gap_null",
    "gap_straddle_free",
    "num_documents",
    "recipe",
    "in_sequence",
    "verdict",
    "moments",
    "config",
    "versions",
}


def by_name(summary):
    return {entry["name"]: entry for entry in summary["runs"]}


def test_summary_is_strict_json_with_every_field(quick_summary):
    text = json.dumps(quick_summary, allow_nan=False)
    assert json.loads(text) == quick_summary
    assert quick_summary["wall_seconds"] == 492.3
    assert set(quick_summary["versions"]) >= {"python", "jax", "numpy", "phasejax"}
    for entry in quick_summary["runs"]:
        assert set(entry) >= REQUIRED
        if entry["name"] in IN_SEQUENCE:
            assert set(entry["in_sequence"]) >= {"mean", "worst", "gap", "period", "p_value"}


def test_accuracies_are_fractions_and_lie_in_their_intervals(quick_summary):
    for entry in quick_summary["runs"]:
        for block in filter(None, (entry, entry["in_sequence"])):
            assert block["num_documents"] == DOCUMENTS
            assert len(block["accuracy"]) == block["residues"] == M
            for name in ("mean", "worst", "gap"):
                assert 0 <= block[f"{name}_low"] <= block[name] <= block[f"{name}_high"] <= 1
            assert block["worst"] == pytest.approx(min(block["accuracy"]))
            gap = max(block["accuracy"]) - min(block["accuracy"])
            assert block["gap"] == pytest.approx(gap, abs=1e-5)  # raw residues, controls too
            assert block["gap_folded"] <= block["gap"] + 1e-6


def test_planted_periods_are_found(quick_summary):
    for name, entry in by_name(quick_summary).items():
        planted = len(PLANTED[name])
        assert entry["period"] == (planted if planted > 1 else None), name
        assert entry["mean"] == pytest.approx(np.mean(PLANTED[name]), abs=0.06)
        if planted > 1:
            assert entry["verdict"] == f"period {planted}"
            assert entry["p_value"] == pytest.approx(1 / 200)
            assert entry["p_known_stride"] == pytest.approx(1 / 200)
        if planted > 1 and name in IN_SEQUENCE:
            assert entry["in_sequence"]["period"] == planted
            assert entry["in_sequence"]["permutations"] == 99


def test_a_control_has_no_stride(quick_summary):
    entry = by_name(quick_summary)["full"]
    assert entry["control"]
    for name in ("window", "stride", "p_known_stride", "gap_straddle_free"):
        assert entry[name] is None
    assert entry["verdict"] == NO_PERIOD
    assert 0 < entry["gap_folded"] < entry["gap"]


def test_straddle_free_gap_leaves_the_boundary_out(quick_summary):
    runs = by_name(quick_summary)
    assert runs["w4s4"]["gap_folded"] > 0.8
    assert runs["w4s4"]["gap_straddle_free"] < 0.1
    assert runs["w2s2"]["gap_straddle_free"] is None  # one phase is left
    assert runs["w8s4"]["gap_straddle_free"] == pytest.approx(runs["w8s4"]["gap_folded"])


def test_gates_are_summarised_where_they_were_captured(quick_summary):
    runs = by_name(quick_summary)
    rows = runs["w8s8"]["gates"]
    assert [(row["layer"], row["branch"]) for row in rows] == [
        (layer, branch) for layer in (0, 1) for branch in ("key", "value")
    ]
    assert rows[2]["static"] == [1.0]
    assert rows[2]["mass_by_phase"] == [[0, 8, 0, 0, 0, 0, 0, 0]]
    assert runs["full"]["gates"] is None
    assert runs["w4s4"]["gates"] is None


def test_broken_gates_are_left_out_with_a_warning(tmp_path, caplog):
    workdir = make_run(tmp_path, "w4s4", documents=2)
    save_gates(workdir / "gates.zarr", gates_of(4), WindowGeometry(4, 4))
    (workdir / "gates.zarr/zarr.json").unlink()
    assert summarize_gates(read_run(workdir)) is None
    assert "zarr.json does not describe gates" in caplog.text


@pytest.mark.parametrize("name", ["full", "w4s4"])
def test_every_number_of_a_block_is_that_of_its_statistic(tmp_path, name):
    # Without an effect no two of these numbers are alike, so that none can stand for another.
    run = read_run(make_run(tmp_path, name, profile=(0.5,), documents=16))
    block = summarize_evaluation(run, "in_sequence", permutations=99, seed=3)
    correct, position = run.tables("in_sequence")
    profile, gap = accuracy_profile(correct, seed=3), estimate_gap(correct, seed=3)
    scan = scan_periods(correct, position, permutations=99, nested_permutations=99, seed=3)
    folded = {p: np.ptp([correct[:, r::p].mean() for r in range(p)]) for p in (2, 3, 4, 6, 8, 12)}
    wanted = {
        "accuracy": profile.accuracy,
        "accuracy_low": profile.low,
        "accuracy_high": profile.high,
        **{key: getattr(profile, key) for key in ("mean", "mean_low", "mean_high")},
        **{key: getattr(profile, key) for key in ("worst", "worst_low", "worst_high")},
        "gap": gap.raw,
        "gap_low": gap.low,
        "gap_high": gap.high,
        "gap_corrected": gap.corrected,
        "gap_null": gap.null_expectation,
        "p_value": scan.p_value,
        "gap_folded": max(folded.values()) if name == "full" else folded[4],
    }
    if name == "w4s4":
        known = known_period_test(correct, position, 4, permutations=99, seed=3)
        free = estimate_gap(correct, period=4, phases=(0, 1, 2), seed=3)
        wanted |= {"p_known_stride": known.p_value, "gap_straddle_free": free.raw}
        wanted |= {"gap_straddle_free_low": free.low, "gap_straddle_free_high": free.high}
        wanted |= {"gap_straddle_free_corrected": free.corrected}
    for key, value in wanted.items():
        np.testing.assert_allclose(block[key], value, err_msg=key)
    wanted = {"statistic": scan.statistic, "p_each": scan.per_period_p}
    wanted |= {"p_adjusted": scan.adjusted_p, "null_quantile": scan.null_quantile}
    for key, value in wanted.items():
        np.testing.assert_allclose(block["scan"][key], value, err_msg=key)


def test_each_condition_is_judged_by_its_own_rows(tmp_path):
    dips = read_run(make_run(tmp_path, "w4s4", documents=16))
    flat = read_run(make_run(tmp_path, "w4s4", 1, profile=(0.5,), documents=16))
    run = dataclasses.replace(
        dips, results={"in_sequence": flat.results["prefix"], "prefix": dips.results["prefix"]}
    )
    entry = summarize_run(run, permutations=99, other_permutations=49)
    assert (entry["period"], entry["verdict"]) == (4, "period 4")
    assert entry["in_sequence"]["verdict"] == NO_PERIOD
    assert entry["val_loss"] == pytest.approx(dips.val_loss, abs=1e-6)
    assert dips.val_loss != flat.val_loss
    # 7 of 20 records are solved by demonstrations; one of the others is guessed, or its value is.
    assert entry["chance"] == pytest.approx(1 / 13 + 12 / 13 / 64, abs=1e-6)
    np.testing.assert_allclose(run.profile(), dips.tables()[0].mean(axis=0))


def test_a_run_near_chance_has_not_learned_whatever_its_period(tmp_path):
    run = read_run(make_run(tmp_path, "w4s4", profile=(0.0, 0.06, 0.06, 0.0), documents=96))
    assert summarize_run(run, permutations=99)["verdict"] == NOT_LEARNED


def test_the_same_seed_gives_the_same_numbers(quick_runs, quick_summary):
    again = summarize_run(read_run(quick_runs / "w4s4-0"), permutations=199, other_permutations=99)
    assert again == by_name(quick_summary)["w4s4"]


def test_runs_may_be_mapped_elsewhere(quick_runs):
    def reversed_map(function, runs):
        return [function(run) for run in runs][::-1]

    runs = [read_run(quick_runs / name) for name in ("full-0", "w4s4-0")]
    options = {"permutations": 99, "other_permutations": 99}
    summary = summarize(runs, map_runs=reversed_map, **options)
    assert [entry["name"] for entry in summary["runs"]] == ["w4s4", "full"]


def test_no_runs_and_doubles_are_refused(quick_runs, tmp_path):
    with pytest.raises(ValueError, match="no evaluated run"):
        summarize([])
    run = read_run(quick_runs / "w4s4-0")
    other = read_run(make_run(tmp_path, "w4s4", documents=2))
    message = "w4s4-0 both hold W4/S4 with recipe easy and seed 0"
    with pytest.raises(ValueError, match=message):
        summarize([run, other])
    renamed = dataclasses.replace(other, name="another", config=other.config | {"name": "another"})
    with pytest.raises(ValueError, match=message):
        summarize([run, renamed])


def test_a_run_without_in_sequence_padding(tmp_path):
    workdir = make_run(tmp_path, "w8s8", documents=20)
    for path in (workdir / "results").glob("in_sequence.*"):
        path.unlink()
    entry = summarize_run(load_runs(tmp_path)[0], permutations=99)
    assert entry["in_sequence"] is None


BLOCK = {"accuracy": [0.5, 0.9], "worst": 0.5, "mean": 0.7, "period": None}


@pytest.mark.parametrize(
    ("change", "chance", "control", "expected"),
    [
        ({}, 0.05, False, NO_PERIOD),
        ({"period": 2}, 0.05, False, "period 2"),
        ({"worst": 0.98}, 0.05, False, AT_CEILING),
        ({"worst": 0.98}, 0.05, True, NO_PERIOD),
        ({"worst": 0.98, "period": 2}, 0.05, False, "period 2"),
        ({"accuracy": [0.05, 0.15], "mean": 0.1, "period": 2}, 0.05, False, NOT_LEARNED),
        ({"accuracy": [0.05, 0.25], "mean": 0.15}, 0.05, True, NOT_LEARNED),
        ({"accuracy": [0.05, 0.25], "mean": 0.15, "period": 2}, 0.05, False, "period 2"),
        ({"accuracy": [0.05, 0.15], "mean": 0.1}, None, False, NO_PERIOD),
        ({"accuracy": [0.3, 0.5], "mean": 0.4}, 1 / 8, False, NO_PERIOD),
        ({"accuracy": [0.1, 0.2], "mean": 0.15}, 1 / 8, False, NOT_LEARNED),
    ],
)
def test_verdict(change, chance, control, expected):
    assert verdict(BLOCK | change, chance, control) == expected


def test_intervals_between_seeds_are_students():
    numbers = between_seeds([0.2, 0.3, 0.4])
    half = 4.302653 * 0.1 / math.sqrt(3)  # t(0.975, 2 degrees of freedom)
    assert numbers["mean"] == pytest.approx(0.3)
    assert (numbers["low"], numbers["high"]) == (
        pytest.approx(0.3 - half, abs=1e-6),
        pytest.approx(0.3 + half, abs=1e-6),
    )
    assert (numbers["smallest"], numbers["largest"]) == (0.2, 0.4)
    assert between_seeds([0.2])["low"] is None
    assert between_seeds([0.01, 0.6])["low"] == 0.0


def test_variants_group_seeds_of_one_recipe(quick_summary):
    base = by_name(quick_summary)["w4s4"]
    hard = {"recipe": "hard", "name": "w4s4_hard"}
    groups = summarize_variants([base, base | {"seed": 1, "mean": 0.5}, base | hard])
    assert [group["seeds"] for group in groups] == [[0, 1], [0]]
    assert groups[0]["mean"]["smallest"] == 0.5


def test_plain_turns_everything_into_json():
    value = {"a": np.arange(2), 3: (np.float32(0.5), float("nan"), np.bool_(True), None, "x")}
    assert plain(value) == {"a": [0, 1], "3": [0.5, None, True, None, "x"]}
