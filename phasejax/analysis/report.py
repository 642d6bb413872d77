# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""The report: one self-contained page, the numbers behind it, and its figures as files."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from phasejax.analysis import figures, plots, tables
from phasejax.analysis.claims import NOT_SHOWN, NOT_TESTED, PARTLY, SHOWN
from phasejax.analysis.hero import hero_figure
from phasejax.analysis.paper import CITATION
from phasejax.analysis.runs import Run
from phasejax.files import write_atomic

MARKS = {SHOWN: "✓", PARTLY: "◐", NOT_SHOWN: "✗", NOT_TESTED: "○"}


def write_report(runs: Sequence[Run], summary: dict[str, Any], directory: str | Path) -> Path:
    """Writes index.html, summary.json and figures/ into a directory.

    Args:
        runs: of load_runs; only their training metrics are used.
        summary: of phasejax.analysis.summarize.
        directory: the report's folder, made if it is missing.

    Returns:
        The path of index.html, which opens offline.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    write_atomic(directory / "summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")
    folder = directory / "figures"
    for old in folder.glob("*.svg"):
        old.unlink()
    images = draw_images(runs, summary, folder)
    write_atomic(directory / "index.html", render(summary, images))
    return directory / "index.html"


def draw_images(
    runs: Sequence[Run], summary: dict[str, Any], folder: Path
) -> dict[str, list[dict[str, str]]]:
    """Draws every figure, one file a panel so that a page can wrap them.

    Args:
        runs: of load_runs.
        summary: of phasejax.analysis.summarize.
        folder: where the files go.

    Returns:
        For each section its images: "uri" for the page and "alt", a description.
    """
    images: dict[str, list[dict[str, str]]] = {}

    def add(section: str, name: str, alt: str, figure: Any) -> None:
        path = figures.save_figure(figure, folder / f"{section}_{name}.svg")
        uri = figures.data_uri(path.read_text(encoding="utf-8"))
        images.setdefault(section, []).append({"uri": uri, "alt": alt})

    for title, entries in plots.group_entries(summary):
        name = slug(title)
        numbers = f"mean {tables.points(entries[0]['mean'])}%"
        numbers += f", worst residue {tables.points(entries[0]['worst'])}%"
        add("accuracy", name, f"{title}: {numbers}", _one(plots.draw_accuracy, (title, entries)))
        found = ", ".join("none" if e["period"] is None else str(e["period"]) for e in entries)
        add("scan", name, f"{title}: period found {found}", _one(plots.draw_scan, (title, entries)))
        if any(entry["in_sequence"] for entry in entries):
            draw = _one(plots.draw_accuracy, (title, entries), "in_sequence")
            add("in_sequence", name, f"{title}, in-sequence padding", draw)
        for entry in filter(lambda entry: entry["gates"], entries):
            alt = f"Gate mass by phase of {title}, seed {entry['seed']}"
            add("gates", f"{name}_{entry['seed']}", alt, plots.gate_figure(entry))
    for title, members in plots.group_runs(runs):
        add("training", slug(title), f"{title}: accuracy by step", plots.training_figure(members))
    figures.save_figure(hero_figure(summary), folder / "hero.svg")
    return images


def slug(title: str) -> str:
    """A file name from a title: "W8/S8, no RoPE" gives "w8s8_no_rope"."""
    return re.sub(r"[^a-z0-9]+", "_", title.lower().replace("/", "")).strip("_")


def _one(draw: Callable[..., None], *arguments: Any) -> Any:
    with figures.style():
        figure, (axes,) = figures.grid(1, 1)
        draw(axes, *arguments)
    return figure


def render(summary: dict[str, Any], images: dict[str, list[dict[str, str]]]) -> str:
    """The page as text.

    Args:
        summary: of phasejax.analysis.summarize.
        images: of draw_images.

    Returns:
        HTML without links to anything outside but the paper.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("phasejax.analysis", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    claims = [claim | {"mark": MARKS[claim["status"]]} for claim in summary["claims"]]
    versions = [entry["versions"] for entry in summary["runs"]]
    return environment.get_template("report.html.j2").render(
        summary=summary,
        images=images,
        tested=[claim for claim in claims if claim["status"] != NOT_TESTED],
        untested=[claim for claim in claims if claim["status"] == NOT_TESTED],
        counts={status: sum(c["status"] == status for c in claims) for status in MARKS},
        wall=tables.duration(summary["wall_seconds"]),
        training=tables.duration(sum(entry["train_seconds"] for entry in summary["runs"])),
        compiling=tables.duration(sum(entry["compile_seconds"] for entry in summary["runs"])),
        rows=tables.run_rows(summary),
        in_sequence=tables.run_rows(summary, "in_sequence"),
        variants=tables.variant_rows(summary),
        recipes=sorted({entry["recipe"] for entry in summary["runs"]}),
        paper=tables.paper_rows(),
        needle=tables.needle_cells(),
        citation=CITATION,
        mixed_versions=any(each != versions[0] for each in versions),
        configs=[
            {
                "title": f"{entry['name']}, seed {entry['seed']}",
                "config": json.dumps(entry["config"], indent=1),
                "moments": json.dumps(entry["moments"]),
                "step": entry["checkpoint_step"],
                "versions": ", ".join(f"{k} {v}" for k, v in entry["versions"].items()),
            }
            for entry in summary["runs"]
        ],
    )
