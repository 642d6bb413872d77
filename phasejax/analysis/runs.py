# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Finished runs, read back from their working directories. No model is needed for it."""

import dataclasses
import functools
import json
import logging
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phasejax.analysis.variants import Variant, recipe_names, recipe_of, variant_of
from phasejax.compress.geometry import WindowGeometry
from phasejax.evals.results import (
    REMEDY,
    Result,
    correct_matrix,
    evaluate_command,
    read_result,
)
from phasejax.training.metrics import read_metrics
from phasejax.training.workdir import differences

PRIMARY = "prefix"
GATES = "gates.zarr"
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Run:
    """One trained and evaluated model.

    Attributes:
        name: the config's name, such as "w8s8_no_rope" or "full_short".
        seed: training seed.
        recipe: as its config names it; arrange tells apart runs of one recipe with other settings.
        config: flat config of the run.
        results: evaluation conditions by name, "prefix" among them.
        metrics: what was logged while training, one object a line; empty if nothing was.
        workdir: the directory that it was read from.
    """

    name: str
    seed: int
    recipe: str
    config: dict[str, Any]
    results: dict[str, Result]
    metrics: list[dict[str, Any]]
    workdir: Path

    @functools.cached_property
    def variant(self) -> Variant:
        """The fields by which it compares to other runs and to the paper."""
        return variant_of(self.config)

    @property
    def is_control(self) -> bool:
        """Whether it has full attention."""
        return self.variant.is_control

    @property
    def window(self) -> int | None:
        """W; None for a control."""
        return self.variant.window

    @property
    def stride(self) -> int | None:
        """S; None for a control."""
        return self.variant.stride

    @property
    def geometry(self) -> WindowGeometry | None:
        """The grid of windows; None for a control."""
        if self.window is None or self.stride is None:
            return None
        return WindowGeometry(self.window, self.stride)

    @property
    def val_loss(self) -> float | None:
        """Validation loss of the evaluated checkpoint."""
        value = self.results[PRIMARY].meta.get("val_loss")
        return None if value is None else float(value)

    def training_seconds(self) -> tuple[float, float]:
        """Seconds of training that were logged, and those of them that went to compiling.

        A stage compiles before its first step: what its first interval takes longer than the median
        of its others. Stages of one interval and gaps between interrupted runs are not counted.
        """
        stages: dict[int, list[float]] = {}
        for line in self.metrics:
            stages.setdefault(line["stage"], []).append(line["seconds"])
        several = [seconds for seconds in stages.values() if len(seconds) > 1]
        compiling = sum(max(first - statistics.median(rest), 0.0) for first, *rest in several)
        return sum(map(sum, stages.values())), compiling

    @property
    def gates_path(self) -> Path:
        """Where its gate captures are, if there are any: load_gates reads them."""
        return self.workdir / GATES

    def tables(self, condition: str = PRIMARY) -> tuple[np.ndarray, np.ndarray]:
        """Correct answers and key positions, both [D, M], of one evaluation condition."""
        return correct_matrix(self.results[condition].rows)

    def profile(self, condition: str = PRIMARY) -> np.ndarray:
        """Accuracy of each residue, [M]."""
        return self.tables(condition)[0].mean(axis=0)

    def straddle_free_phases(self) -> tuple[int, ...]:
        """Phases whose key and value are covered by one entry; empty for a control.

        The value stands 1 + separation tokens after the key.
        """
        grid = self.geometry
        if grid is None:
            return ()
        key = np.arange(grid.stride) + grid.stride
        share = grid.share_entry(key, key + 1 + self.variant.separation)
        return tuple(np.flatnonzero(share).tolist())


def read_run(workdir: str | Path) -> Run:
    """Reads one run.

    Args:
        workdir: a folder with config.json and results/.

    Returns:
        The run.

    Raises:
        ValueError: a file is missing, cut off or altered; the message names it and the remedy.
    """
    workdir = Path(workdir)
    config = _read_config(workdir / "config.json")
    folder = workdir / "results"
    command = evaluate_command(workdir)
    conditions = sorted({path.stem for path in folder.glob("*.[cj]s*") if path.name[0] != "."})
    if PRIMARY not in conditions:
        raise ValueError(f"{folder} has no evaluation {PRIMARY!r}: {command}.")
    results = {}
    for name in conditions:
        results[name] = read_result(folder, name)
        try:
            correct_matrix(results[name].rows)
            _check_same(results[name].meta.get("config"), config)
        except ValueError as error:
            raise ValueError(f"{error} ({name}: {command})") from error
    return Run(
        name=config["name"],
        seed=config["seed"],
        recipe=recipe_of(config),
        config=config,
        results=results,
        metrics=read_metrics(workdir),
        workdir=workdir,
    )


def _check_same(found: Any, config: dict[str, Any]) -> None:
    """Checks that a result is of the run's config, where both say something."""
    differing = differences(found, config, "in config.json") if isinstance(found, dict) else []
    if differing:
        raise ValueError(f"the result is of another config ({'; '.join(differing)}): {REMEDY}.")


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError("it is not an object")
        for name, kind in (("name", str), ("seed", int)):
            if not isinstance(config.get(name), kind):
                raise ValueError(f"{name} is {config.get(name)!r}")
        variant_of(config)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{path} is not the config of a run ({error}): train the run again, or move its"
            " folder away."
        ) from error
    return config


def find_runs(directory: str | Path) -> Iterator[Path]:
    """Folders below a directory (itself included) that hold config.json and results/."""
    for path in sorted(Path(directory).rglob("config.json")):
        if (path.parent / "results").is_dir():
            yield path.parent


def load_runs(directory: str | Path, *, strict: bool = True) -> list[Run]:
    """Reads every evaluated run below a directory.

    Args:
        directory: where to look, recursively.
        strict: whether a broken run is an error; otherwise it is left out with a warning.

    Returns:
        The runs, as arrange puts them.

    Raises:
        ValueError: the directory does not exist, or, if strict, some run is broken.
    """
    if not Path(directory).is_dir():
        raise ValueError(f"{directory} is not a directory: pass the one that holds the runs.")
    runs = []
    for workdir in find_runs(directory):
        try:
            runs.append(read_run(workdir))
        except ValueError as error:
            if strict:
                raise
            _log.warning("a broken run is left out: %s", error)
    return arrange(runs)


def arrange(runs: Sequence[Run]) -> list[Run]:
    """Runs by recipe: its controls, then its variants, each by seed.

    Where runs of a recipe differ in more than the variant, each gets a recipe that says so.
    """
    names = recipe_names([run.config for run in runs])
    runs = [dataclasses.replace(run, recipe=name) for run, name in zip(runs, names, strict=True)]
    return sorted(runs, key=lambda run: (run.recipe, run.variant.order, run.name, run.seed))
