# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Every cell of a table holds its own number: no two numbers of these summaries are alike."""

import numpy as np

from phasejax.analysis import tables
from phasejax.analysis.paper import needle_rows
from phasejax.analysis.seeds import between_seeds

from .conftest import config_of

CELLS = {  # cell: the numbers that it shows
    "mean": ("mean",),
    "mean_interval": ("mean_low", "mean_high"),
    "worst": ("worst",),
    "worst_interval": ("worst_low", "worst_high"),
    "gap": ("gap",),
    "gap_interval": ("gap_low", "gap_high"),
    "gap_corrected": ("gap_corrected",),
    "gap_null": ("gap_null",),
    "gap_folded": ("gap_folded",),
    "gap_free": ("gap_straddle_free",),
    "gap_free_interval": ("gap_straddle_free_low", "gap_straddle_free_high"),
}


def block(first: int) -> dict:
    names = [name for cell in CELLS.values() for name in cell]
    numbers = {name: (first + i) / 1000 for i, name in enumerate(names)}
    others = {"period": first % 20, "p_value": first / 5000, "p_known_stride": first / 4000}
    words = {"straddle_free_phases": [0, 1, 2, 3, 4, 5, 6], "verdict": "period 8"}
    return numbers | others | words


def entry(name: str, seed: int, first: int) -> dict:
    about = {"name": name, "variant": name.upper(), "recipe": "easy", "seed": seed}
    about |= {"control": False, "val_loss": first / 100, "config": config_of(name, seed)}
    return about | block(first) | {"in_sequence": block(first + 300)}


def test_every_cell_holds_its_own_number():
    runs = [entry("w8s8", 0, 101), entry("w4s4", 1, 137)]
    for condition, shift in (("prefix", 0), ("in_sequence", 300)):
        rows = tables.run_rows({"runs": runs}, condition)
        for row, run, first in zip(rows, runs, (101, 137), strict=True):
            assert (row["name"], row["seed"]) == (run["name"], str(run["seed"]))
            assert row["loss"] == f"{first / 100:.3f}"
            numbers = block(first + shift)
            for cell, names in CELLS.items():
                text = ", ".join(f"{100 * numbers[name]:.1f}" for name in names)
                assert row[cell] == (f"[{text}]" if len(names) == 2 else text), cell
            assert row["period"] == str(numbers["period"])
            assert row["p"] == tables.p_value(numbers["p_value"])
            assert row["p_stride"] == tables.p_value(numbers["p_known_stride"])
            assert row["free_phases"] == "0–6"


def test_the_papers_cells_are_of_the_same_variant_and_evaluation():
    runs = [entry("w8s8", 0, 101), entry("w4s4", 0, 102), entry("w8s8_no_rope", 0, 103)]
    prefix, in_sequence = (
        [
            [row[f"paper_{name}"] for name in ("runs", "loss", "mean", "worst", "gap")]
            for row in tables.run_rows({"runs": runs}, condition)
        ]
        for condition in ("prefix", "in_sequence")
    )
    assert prefix == [
        ["4", "2.477–2.482", "32.1–56.1", "2.5–15.6", "36.6–75.3"],
        ["1", "2.469", "38.5", "8.0", "50.5"],
        ["1", "2.504", "29.4", "5.0", "40.9"],
    ]
    assert in_sequence == [
        ["4", "2.477–2.482", "11.4–35.5", "1.5–6.5", "20.1–54.4"],
        ["1", "2.469", "37.5", "8.9", "43.3"],
        ["1", "2.504", "26.0", "4.9", "40.0"],
    ]


def test_intervals_of_a_variant_are_between_seeds():
    seeds = {"mean": [0.5, 0.56, 0.6], "worst": [0.1, 0.13, 0.2], "gap": [0.7, 0.72, 0.8]}
    group = {"variant": "W8/S8", "recipe": "easy", "seeds": [0, 1, 2], "periods": [8, None, 8]}
    group |= {name: between_seeds(values) for name, values in seeds.items()}
    single = group | {"seeds": [0]}
    (row,) = tables.variant_rows({"variants": [group, single]})
    for name, values in seeds.items():
        numbers = group[name]
        assert row[name] == f"{100 * np.mean(values):.1f}"
        assert (
            row[f"{name}_interval"] == f"[{100 * numbers['low']:.1f}, {100 * numbers['high']:.1f}]"
        )
        assert row[f"{name}_range"] == f"{100 * values[0]:.1f}–{100 * values[-1]:.1f}"
    assert row["periods"] == "8, none, 8"


def test_cells_of_the_needle_test():
    for row, found in zip(needle_rows(), tables.needle_cells(), strict=True):
        assert found["prompts"] == str(row.prompts)
        worst = [cell["worst"] for cell in found["cells"]]
        assert worst == [accuracy == min(row.accuracy) for accuracy in row.accuracy]
    first = tables.needle_cells()[0]
    assert first["cells"][0] == {"value": "43.8", "interval": "[37.8, 49.9]", "worst": False}
    assert first["cells"][3]["worst"]
    assert (first["mean"], first["gap"]) == ("52.6", "40.2")
