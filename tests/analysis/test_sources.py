# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers of a report come from where they say."""

import copy

import numpy as np
import pytest

from phasejax.analysis import plots, tables
from phasejax.analysis.claims import SHOWN
from phasejax.analysis.figures import grid
from phasejax.analysis.hero import hero_figure
from phasejax.analysis.runs import read_run
from phasejax.analysis.summary import summarize_run
from phasejax.analysis.verdicts import NOT_LEARNED
from phasejax.evals.results import read_result, write_result

from .conftest import make_run, rows_of
from .test_claims import claim, control, entry


@pytest.fixture(scope="module")
def unlike(tmp_path_factory):
    """Period 8 without a part of period 4 under prefix padding; flat under in-sequence padding."""
    workdir = make_run(
        tmp_path_factory.mktemp("unlike"), "w8s4", profile=[0.9] * 4 + [0.1] * 4, documents=40
    )
    meta = read_result(workdir / "results", "in_sequence").meta
    rows = rows_of([0.3], 40, 5)
    write_result(workdir / "results", "in_sequence", rows, meta)
    return summarize_run(read_run(workdir), permutations=99), rows["correct"].reshape(40, 24)


def test_in_sequence_numbers_are_of_in_sequence_rows(unlike):
    made, correct = unlike
    block = made["in_sequence"]
    np.testing.assert_allclose(block["accuracy"], correct.mean(0), atol=1e-6)
    assert (made["period"], block["period"]) == (8, None)
    row = tables.run_rows({"runs": [made]}, "in_sequence")[0]
    assert row["mean"] == tables.points(correct.mean()) != tables.points(made["mean"])
    for condition, wanted in (("in_sequence", block), ("prefix", made)):
        _, (axes,) = grid(1, 1)
        plots.draw_accuracy(axes, ("x", [made]), condition)
        line = next(line for line in axes.lines if len(line.get_ydata()) == 24)
        np.testing.assert_allclose(line.get_ydata(), 100 * np.array(wanted["accuracy"]))


def test_a_run_without_in_sequence_padding_has_no_row_there(unlike):
    alone = unlike[0] | {"in_sequence": None}
    assert tables.run_rows({"runs": [alone]}, "in_sequence") == []


def test_p_at_the_stride_is_of_the_stride_and_not_of_the_window(unlike):
    made, _ = unlike
    each = dict(zip(made["scan"]["periods"], made["scan"]["p_each"], strict=True))
    assert each[8] == 0.01
    assert made["p_known_stride"] == each[4] > 0.05


def test_p_of_a_period_alone_and_among_all(unlike):
    scan = unlike[0]["scan"]
    each, adjusted = np.array(scan["p_each"]), np.array(scan["p_adjusted"])
    assert (each <= adjusted).all()
    assert (each < adjusted).any()
    assert unlike[0]["p_value"] == adjusted.min()


def test_a_run_at_chance_has_not_learned(tmp_path):
    made = summarize_run(read_run(make_run(tmp_path, "w4s4", profile=[0.06])), permutations=99)
    assert made["chance"] == pytest.approx(1 / 13 + 12 / 13 / 64, abs=1e-6)
    assert made["verdict"] == made["in_sequence"]["verdict"] == NOT_LEARNED


def test_every_cell_shows_the_number_of_its_name(quick_summary):
    made = copy.deepcopy(quick_summary["runs"][-1])
    names = ["mean", "mean_low", "mean_high", "worst", "worst_low", "worst_high"]
    names += ["gap", "gap_low", "gap_high", "gap_corrected", "gap_null", "gap_folded"]
    names += [f"gap_straddle_free{end}" for end in ("", "_low", "_high")]
    made |= {name: (i + 1) / 100 for i, name in enumerate(names)}
    made |= {"p_value": 0.2, "p_known_stride": 0.3, "period": 7}
    row = tables.run_rows({"runs": [made]})[0]
    cells = ["mean", "mean_interval", "worst", "worst_interval", "gap", "gap_interval"]
    cells += ["gap_corrected", "gap_null", "gap_folded", "gap_free", "gap_free_interval"]
    assert [row[name] for name in cells] == [
        "1.0", "[2.0, 3.0]", "4.0", "[5.0, 6.0]", "7.0", "[8.0, 9.0]",
        "10.0", "11.0", "12.0", "13.0", "[14.0, 15.0]",
    ]  # fmt: skip
    assert (row["p"], row["p_stride"], row["period"]) == ("0.20", "0.30", "7")


def test_no_dip_is_announced_where_the_control_dips_too(quick_summary):
    summary = copy.deepcopy(quick_summary)
    for run in summary["runs"]:
        if run["control"]:
            run["period"] = 8
    left, _ = hero_figure(summary).axes
    assert left.get_title(loc="left") == "Recall by position"


def test_a_control_is_no_run_of_a_stride():
    found = claim("stride", control(), entry(), entry("w4s4", 4, 4))
    assert found.status == SHOWN
    assert "full" not in found.text


def test_a_mean_well_below_the_control_is_not_normal():
    assert claim("mean", control(mean=1.0), entry(mean=0.79)).status != SHOWN
    assert claim("mean", control(mean=1.0), entry(mean=0.81)).status == SHOWN
