# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Look and storage of figures: one calm style, legible at phone width, without pyplot.

Colours are Okabe and Ito's, which colour-blind readers can tell apart.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#6E6E6E"
INK, LINE, PAPER = "#222222", "#D9D9D9", "#FFFFFF"
FONTS = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
PANEL = (3.5, 2.3)

_STYLE: dict[Any, Any] = {
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "axes.edgecolor": LINE,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "text.color": INK,
    "font.size": 9,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "phasejax",
    "path.simplify": True,
}


@contextmanager
def style() -> Iterator[None]:
    """The project's matplotlib settings, for the time of drawing or saving."""
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        yield


def grid(
    panels: int, columns: int, panel: tuple[float, float] = PANEL
) -> tuple[Figure, Sequence[Axes]]:
    """A figure of equal panels, filled row by row.

    Args:
        panels: how many; the rest of the last row stays empty.
        columns: panels in a row, at most `panels` are used.
        panel: width and height of one, in inches.

    Returns:
        The figure and its axes.
    """
    from matplotlib.figure import Figure

    columns = max(1, min(columns, panels))
    rows = max(1, -(-panels // columns))
    figure = Figure(figsize=(panel[0] * columns, panel[1] * rows))
    if panels > 1:
        figure.set_layout_engine("constrained")
    else:  # much faster to draw
        top, bottom = 0.42 / panel[1], 0.46 / panel[1]
        figure.subplots_adjust(0.62 / panel[0], bottom, 1 - 0.08 / panel[0], 1 - top)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for empty in axes[panels:]:
        empty.set_axis_off()
    return figure, list(axes[:panels])


def to_svg(figure: Figure) -> str:
    """The figure as SVG with text as text, the same bytes for the same figure."""
    text = io.StringIO()
    with style():
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return _compact(text.getvalue())


def _compact(svg: str) -> str:
    """Halves the size: one font family for all, hundredths of a point, no comments."""
    svg = re.sub(r"<!--.*?-->\s*|<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font-family: ?[^;\"]*;? ?", "", svg)
    svg = re.sub(r"font: ([^\"]*?)([0-9.]+px)[^;\"]*", _font, svg)
    svg = re.sub(r"(-?\d+\.\d{2})\d+", r"\1", svg)
    svg = re.sub(r"\n\s*", "\n", svg)
    return svg.replace("<svg ", f'<svg style="font-family: {FONTS}" ', 1)


def _font(match: re.Match[str]) -> str:
    weight = "font-weight: bold; " if re.search("bold|700", match[1]) else ""
    return f"{weight}font-size: {match[2]}"


def data_uri(svg: str) -> str:
    """An SVG as the address of an image inside a page."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Writes a figure as .svg or .png.

    Args:
        figure: the figure.
        path: where to; the suffix decides the format.

    Returns:
        The path.

    Raises:
        ValueError: another suffix.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".svg":
        path.write_text(to_svg(figure), encoding="utf-8")
    elif path.suffix == ".png":
        options: dict[str, Any] = {"metadata": {"Software": None}, "dpi": 150}
        with style():
            figure.savefig(path, format="png", **options)
    else:
        raise ValueError(f"{path} ends in {path.suffix!r}: choose .svg or .png.")
    return path
