# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of the report's tables: a summary's numbers as text, the paper's beside them."""

from collections.abc import Sequence
from typing import Any

from phasejax.analysis.paper import PaperProfile, PaperRun, needle_rows, paper_runs, paper_runs_like
from phasejax.analysis.variants import variant_of
from phasejax.analysis.verdicts import AT_CEILING, NOT_LEARNED, Entry

NONE = "–"
Row = dict[str, str]


def points(value: float | None) -> str:
    """A fraction as percent with one decimal."""
    return NONE if value is None else f"{100 * value:.1f}"


def interval(low: float | None, high: float | None) -> str:
    """Two fractions as a bracketed interval in percent; empty if there is none."""
    return "" if low is None or high is None else f"[{points(low)}, {points(high)}]"


def p_value(value: float | None) -> str:
    """A permutation p-value, as many digits as it has."""
    if value is None:
        return NONE
    return f"{value:.4f}" if value < 0.01 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def duration(seconds: float | None) -> str:
    """Seconds for a reader."""
    if seconds is None:
        return "not recorded"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "min"), (rest, "s")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or "0 s"


def spread(values: Sequence[float], digits: int = 1) -> str:
    """One number, or the range of several."""
    if not values:
        return NONE
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low}–{high}"


def phase_list(phases: Sequence[int]) -> str:
    """Phases as a range where they are one: "0–6"."""
    if len(phases) > 2 and list(phases) == list(range(phases[0], phases[-1] + 1)):
        return f"{phases[0]}–{phases[-1]}"
    return ", ".join(map(str, phases)) or NONE


def _paper_cells(runs: Sequence[PaperRun], condition: str) -> Row:
    profiles = [p for run in runs if (p := getattr(run, condition)) is not None]
    return {
        "paper_runs": str(len(profiles)),
        "paper_loss": spread([run.loss for run in runs], 3),
        "paper_mean": spread([profile.mean for profile in profiles]),
        "paper_worst": spread([profile.worst for profile in profiles]),
        "paper_gap": spread([profile.gap for profile in profiles]),
    }


def _numbers(block: dict[str, Any]) -> Row:
    return {
        "mean": points(block["mean"]),
        "mean_interval": interval(block["mean_low"], block["mean_high"]),
        "worst": points(block["worst"]),
        "worst_interval": interval(block["worst_low"], block["worst_high"]),
        "gap": points(block["gap"]),
        "gap_interval": interval(block["gap_low"], block["gap_high"]),
        "gap_corrected": points(block["gap_corrected"]),
        "gap_null": points(block["gap_null"]),
        "gap_folded": points(block["gap_folded"]),
        "gap_free": points(block["gap_straddle_free"]),
        "gap_free_interval": interval(
            block["gap_straddle_free_low"], block["gap_straddle_free_high"]
        ),
        "free_phases": phase_list(block["straddle_free_phases"]),
        "period": "none" if block["period"] is None else str(block["period"]),
        "p": p_value(block["p_value"]),
        "p_stride": p_value(block["p_known_stride"]),
        "remark": block["verdict"] if block["verdict"] in (NOT_LEARNED, AT_CEILING) else "",
    }


def run_rows(summary: dict[str, Any], condition: str = "prefix") -> list[Row]:
    """One row a run, with the paper's numbers for the same variant.

    Args:
        summary: of phasejax.analysis.summarize.
        condition: "prefix" or "in_sequence"; runs without that evaluation have no row.

    Returns:
        Cells as text; the paper's are ranges where it has several seeds.
    """
    rows = []
    for entry in summary["runs"]:
        block = entry if condition == "prefix" else entry[condition]
        if block is not None:
            rows.append(_run_row(entry, block, condition))
    return rows


def _run_row(entry: Entry, block: dict[str, Any], condition: str) -> Row:
    loss = entry["val_loss"]
    return {
        "name": entry["name"],
        "variant": entry["variant"],
        "recipe": entry["recipe"],
        "seed": str(entry["seed"]),
        "control": "yes" if entry["control"] else "",
        "loss": NONE if loss is None else f"{loss:.3f}",
        **_numbers(block),
        **_paper_cells(paper_runs_like(variant_of(entry["config"])), condition),
    }


def variant_rows(summary: dict[str, Any]) -> list[Row]:
    """One row a variant that has several seeds, with intervals between seeds."""
    rows = []
    for group in summary["variants"]:
        if len(group["seeds"]) < 2:
            continue
        row = {"variant": group["variant"], "recipe": group["recipe"]}
        row["seeds"] = ", ".join(map(str, group["seeds"]))
        for name in ("mean", "worst", "gap"):
            numbers = group[name]
            row[name] = points(numbers["mean"])
            row[f"{name}_interval"] = interval(numbers["low"], numbers["high"])
            row[f"{name}_range"] = f"{points(numbers['smallest'])}–{points(numbers['largest'])}"
        row["periods"] = ", ".join("none" if p is None else str(p) for p in group["periods"])
        rows.append(row)
    return rows


def paper_rows() -> list[dict[str, Any]]:
    """The paper's 26 runs with its own intervals, both evaluations; cells are None without one."""
    return [
        {
            "name": run.name,
            "loss": f"{run.loss:.3f}",
            "prefix": _paper_profile(run.prefix),
            "in_sequence": run.in_sequence and _paper_profile(run.in_sequence),
        }
        for run in paper_runs()
    ]


def _paper_profile(profile: PaperProfile) -> Row:
    ends = {"mean": profile.mean_interval, "gap": profile.gap_interval}
    numbers = {name: f"{getattr(profile, name):.1f}" for name in ("mean", "worst", "gap")}
    return numbers | {
        f"{name}_interval": f"[{pair[0]:.1f}, {pair[1]:.1f}]" if pair else ""
        for name, pair in ends.items()
    }


def needle_cells() -> list[dict[str, Any]]:
    """The five DeepSeek rows: a cell with a Wilson interval at each residue."""
    rows = []
    for row in needle_rows():
        accuracy, (low, high) = row.accuracy, row.interval
        worst = accuracy.min()
        cells = [
            {"value": f"{a:.1f}", "interval": f"[{lo:.1f}, {hi:.1f}]", "worst": bool(a == worst)}
            for a, lo, hi in zip(accuracy, low, high, strict=True)
        ]
        rows.append(
            {
                "name": row.name,
                "stage": row.stage,
                "stride": str(row.stride),
                "prompts": str(row.prompts),
                "cells": cells,
                "mean": f"{accuracy.mean():.1f}",
                "gap": f"{accuracy.max() - worst:.1f}",
            }
        )
    return rows
