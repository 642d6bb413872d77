# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Figures, drawn from a summary (or the metrics of runs) alone.

Every function returns a matplotlib Figure; save it with phasejax.analysis.figures.save_figure.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from phasejax.analysis.figures import BLUE, GREY, INK, LINE, ORANGE, PANEL, grid, style
from phasejax.analysis.runs import Run, arrange
from phasejax.analysis.verdicts import Entry, by_variant, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLACEBO = "#B8B8B8"

Group = tuple[str, list[Entry]]


def group_entries(summary: dict[str, Any]) -> list[Group]:
    """Entries by variant and recipe, with a title; the seeds of a group share a panel.

    Args:
        summary: of phasejax.analysis.summarize.

    Returns:
        (title, entries) in the order of the summary.
    """
    groups = by_variant(summary["runs"])
    return [(title[0].upper() + title[1:], entries) for title, entries in groups.items()]


def group_runs(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """Runs that have training metrics, grouped and titled as group_entries does."""
    entries = [
        {"variant": run.variant.label, "recipe": run.recipe, "run": run}
        for run in arrange(runs)
        if any("accuracy" in line for line in run.metrics)
    ]
    groups = group_entries({"runs": entries})
    return [(title, [entry["run"] for entry in group]) for title, group in groups]


def _block(entry: Entry, condition: str) -> dict[str, Any] | None:
    return entry if condition == "prefix" else entry.get(condition)


def colour_of(entry: Entry) -> str:
    """Grey for a control, blue for a compressed run."""
    return GREY if entry["control"] else BLUE


def _mean_of(blocks: Sequence[dict[str, Any]], name: str) -> str:
    return percent(float(np.mean([block[name] for block in blocks])))


def set_title(axes: Axes, title: str, pad: float = 18) -> None:
    """A title; one that is too long for a panel is set smaller, a very long one on two lines."""
    lines = textwrap.wrap(title, max(44, 2 * len(title) // 3))
    size = min(10.0, 10.0 * 33 / max(map(len, lines)))
    axes.set_title("\n".join(lines), fontweight="bold", pad=pad, fontsize=size)
    figure = axes.get_figure(root=True)
    if len(lines) > 1 and figure is not None and figure.get_layout_engine() is None:
        room = 1.25 * size / 72 / figure.get_figheight()
        figure.subplots_adjust(top=figure.subplotpars.top - room)


def draw_accuracy(axes: Axes, group: Group, condition: str = "prefix") -> None:
    """Accuracy by residue with 95% Wilson bands; the worst residue of each seed is marked."""
    title, entries = group
    blocks = [block for entry in entries if (block := _block(entry, condition))]
    residues = max((block["residues"] for block in blocks), default=24)
    stride = entries[0]["stride"]
    for edge in np.arange(0, residues + 1, stride) if stride else ():
        axes.axvline(edge - 0.5, color=LINE, linewidth=0.9, zorder=0)
    for block in blocks:
        x, y = np.arange(block["residues"]), 100 * np.array(block["accuracy"])
        low, high = (100 * np.array(block[f"accuracy_{end}"]) for end in ("low", "high"))
        colour = colour_of(entries[0])
        axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(x, y, color=colour, linewidth=1.4, marker="o", markersize=2.2)
        if np.ptp(y):
            worst = int(np.argmin(y))
            axes.plot([worst], [y[worst]], "o", color=ORANGE, markersize=4.5, zorder=3)
    axes.set(xlim=(-0.5, residues - 0.5), ylim=(0, 102), yticks=[0, 25, 50, 75, 100])
    step = stride if stride and stride > 3 else 6 if residues % 6 == 0 else 4
    axes.set_xticks(np.arange(0, residues, step))
    set_title(axes, title)
    if blocks:
        numbers = " · ".join(
            f"{name} {_mean_of(blocks, name)}" for name in ("mean", "worst", "gap")
        )
        axes.text(0, 1.05, numbers, transform=axes.transAxes, color=GREY, fontsize=8.5)
    axes.set(xlabel="key position modulo " + str(residues), ylabel="accuracy (%)")


def draw_scan(axes: Axes, group: Group, condition: str = "prefix") -> None:
    """Evidence for every period: the stride, its multiples (lighter) and placebos (grey).

    The dashed line is the 95% quantile of the largest value under the permutation null.
    """
    title, entries = group
    stride = entries[0]["stride"]
    blocks = [block for entry in entries if (block := _block(entry, condition))]
    for i, block in enumerate(blocks):
        scan = block["scan"]
        periods = np.array(scan["periods"])
        multiple = "#9CC9E3" if stride else PLACEBO
        colours = [
            BLUE if p == stride else multiple if p % (stride or 1) == 0 else PLACEBO
            for p in periods
        ]
        width = 0.8 / len(blocks)
        left = periods - 0.4 + width * (i + 0.5)
        axes.bar(left, np.maximum(scan["statistic"], 0.02), width=width, color=colours)
        axes.axhline(scan["null_quantile"], color=ORANGE, linewidth=1, linestyle=(0, (4, 2)))
    axes.set_yscale("symlog", linthresh=5, linscale=1.2)
    highest = max((max(block["scan"]["statistic"]) for block in blocks), default=0)
    marks = (0, 2, 5, 10) if highest < 50 else (0, 5, 100, 1000)
    ticks = [mark for mark in marks if mark <= max(10.0, 1.2 * highest)]
    axes.set_ylim(0, max(10.0, 1.6 * highest))
    axes.set_yticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()
    last = max((block["residues"] for block in blocks), default=24)
    axes.set_xticks([p for p in (2, 4, 6, 8, 12, 16, 20, 24) if p <= last])
    axes.set_xlim(1.3, last + 0.7)
    set_title(axes, title)
    found = ", ".join("none" if b["period"] is None else str(b["period"]) for b in blocks)
    text = f"period found: {found}" + (f" · stride {stride}" if stride else "")
    axes.text(0, 1.05, text, transform=axes.transAxes, color=GREY, fontsize=8.5)
    axes.set(xlabel="period tried", ylabel="evidence")


def _panels(
    draw: Callable[[Axes, Group, str], None], summary: dict[str, Any], condition: str, columns: int
) -> Figure:
    groups = group_entries(summary)
    with style():
        figure, axes = grid(len(groups), columns)
        for one, group in zip(axes, groups, strict=True):
            draw(one, group, condition)
    return figure


def accuracy_figure(summary: dict[str, Any], condition: str = "prefix", columns: int = 3) -> Figure:
    """Accuracy by residue, one panel a variant, controls in grey.

    Args:
        summary: of phasejax.analysis.summarize.
        condition: "prefix" or "in_sequence".
        columns: panels in a row.

    Returns:
        The figure; light vertical lines are the borders of the strides.
    """
    return _panels(draw_accuracy, summary, condition, columns)


def scan_figure(summary: dict[str, Any], condition: str = "prefix", columns: int = 3) -> Figure:
    """Period scans, one panel a variant; see draw_scan and accuracy_figure."""
    return _panels(draw_scan, summary, condition, columns)


def training_figure(runs: Sequence[Run], columns: int = 3) -> Figure:
    """Training accuracy by step, one panel a variant; a dotted line where a stage ends.

    Args:
        runs: of load_runs; those without metrics are left out.
        columns: panels in a row.

    Returns:
        The figure.
    """
    groups = group_runs(runs)
    with style():
        figure, axes = grid(max(len(groups), 1), columns, (PANEL[0], 1.9))
        for one, (title, members) in zip(axes, groups, strict=False):
            for run in members:
                lines = [line for line in run.metrics if "accuracy" in line]
                step = np.array([line["step"] for line in lines])
                accuracy = 100 * np.array([line["accuracy"] for line in lines])
                one.plot(step, accuracy, color=GREY if run.is_control else BLUE, linewidth=1.2)
                stage = np.array([line.get("stage", 0) for line in lines])
                for end in np.flatnonzero(stage[1:] != stage[:-1]):
                    one.axvline(step[end + 1], color=LINE, linewidth=0.9, linestyle=":")
            one.set(ylim=(0, 102), yticks=[0, 50, 100], xlabel="step", ylabel="accuracy (%)")
            set_title(one, title, pad=6)
        if not groups:
            axes[0].set_axis_off()
            axes[0].text(0, 0.5, "no training metrics", color=GREY)
    return figure


def gate_figure(entry: Entry) -> Figure:
    """Gate mass by phase of one run, relative to a uniform gate: a row a head.

    Args:
        entry: of a summary's runs, with gates.

    Returns:
        The figure.

    Raises:
        ValueError: the entry has no gates.
    """
    if not entry["gates"]:
        raise ValueError(f"{entry['name']} has no gate captures: capture its gates first.")
    names = [
        f"layer {row['layer']} {row['branch']}" + (f" {head}" if len(row["static"]) > 1 else "")
        for row in entry["gates"]
        for head in range(len(row["static"]))
    ]
    mass = np.array([head for row in entry["gates"] for head in row["mass_by_phase"]])
    with style():
        figure, (axes,) = grid(1, 1, (PANEL[0] + 0.6, 1.0 + 0.28 * len(mass)))
        figure.subplots_adjust(left=0.26)
        bound = max(2.0, float(mass.max()))
        axes.imshow(mass, cmap="cividis", vmin=0, vmax=bound, aspect="auto")
        for (row, phase), value in np.ndenumerate(mass):
            colour = INK if value > 0.5 * bound else "#FFFFFF"
            axes.text(phase, row, f"{value:.1f}", ha="center", va="center", color=colour, size=7.5)
        axes.set_xticks(range(mass.shape[1]))
        axes.set_yticks(range(len(names)), names)
        axes.set(xlabel="phase")
        axes.set_title(f"{entry['variant']}, seed {entry['seed']}", fontweight="bold")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
    return figure
