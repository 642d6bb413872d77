# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The figure at the top of a README: the finding of a whole summary in two panels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from phasejax.analysis.figures import GREEN, GREY, LINE, ORANGE, grid, style
from phasejax.analysis.plots import colour_of
from phasejax.analysis.verdicts import Entry, can_show, follows, is_learned

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def hero_figure(summary: dict[str, Any]) -> Figure:
    """The finding in two panels: a dip where the control has none, and its period is the stride.

    Args:
        summary: of phasejax.analysis.summarize.

    Returns:
        The figure, wide, for the top of a README.
    """
    shown = [entry for entry in summary["runs"] if not entry["control"] and is_learned(entry)]
    plain = [entry for entry in shown if not entry["differences"]] or shown
    with style():
        figure, (left, right) = grid(2, 2, (4.2, 3.0))
        if plain:
            example = max(plain, key=lambda e: (e["stride"] == 8 == e["window"], e["gap"]))
            controls = [
                e
                for e in summary["runs"]
                if e["control"] and is_learned(e) and e["recipe"] == example["recipe"]
            ]
            for entry in [*controls[:1], example]:
                x, y = np.arange(entry["residues"]), 100 * np.array(entry["accuracy"])
                low, high = (100 * np.array(entry[f"accuracy_{end}"]) for end in ("low", "high"))
                left.fill_between(x, low, high, color=colour_of(entry), alpha=0.2, linewidth=0)
                label = entry["variant"] + ("" if entry["control"] else " compression")
                left.plot(
                    x, y, color=colour_of(entry), linewidth=1.8, marker="o", ms=3, label=label
                )
            for edge in range(0, example["residues"] + 1, example["stride"]):
                left.axvline(edge - 0.5, color=LINE, linewidth=0.9, zorder=0)
            left.set_xticks(range(0, example["residues"], max(example["stride"], 4)))
            left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
            left.set_xlabel(f"position of the key, modulo {example['residues']}")
            dips = follows(example) and not any(e["period"] for e in controls)
            title = "Recall repeats with every chunk" if dips else "Recall by position"
            left.set_title(title, fontweight="bold")
        left.set(ylim=(0, 102), ylabel="recall (%)")
        _draw_strides(right, shown)
    return figure


def _draw_strides(axes: Axes, entries: Sequence[Entry]) -> None:
    """Period found against stride; runs at the ceiling, which can show none, are hollow."""
    marks: dict[tuple[int, int, bool], int] = {}
    for entry in entries:
        key = (entry["stride"], entry["period"] or 0, can_show(entry))
        marks[key] = marks.get(key, 0) + 1
    able_marks = [(stride, period) for stride, period, able in marks if able]
    follow = bool(able_marks) and all(stride == period for stride, period in able_marks)
    title = "The period is the stride" if follow else "Period found, by stride"
    top = max([12, *(max(stride, period) for stride, period, _ in marks)]) + 1.5
    axes.plot([0, top], [0, top], color=LINE, linewidth=1.2, zorder=0)
    for (stride, period, able), count in marks.items():
        colour = GREY if not able else GREEN if stride == period else ORANGE
        face = colour if able else "none"
        size = 60 + 14 * (count - 1)
        axes.scatter([stride], [period], s=size, facecolor=face, edgecolor=colour, zorder=3)
        text = (f"{count} runs" if count > 1 else "") if able else "at the ceiling"
        if text:
            axes.annotate(
                text,
                (stride, period),
                (8, -3 if not able else -10),
                textcoords="offset points",
                color=GREY,
            )
    axes.set(xlim=(0, top), ylim=(-0.8, top), xlabel="stride of the compressor")
    ticks = sorted({stride for stride, _, _ in marks} | {2, 4, 6, 8, 12})
    axes.set_xticks(ticks)
    axes.set_yticks([0, *ticks], ["none", *map(str, ticks)])
    axes.set(ylabel="period found")
    axes.set_title(title, fontweight="bold")
