# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What the scripts share: one-line errors, progress with ETA, tables."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from absl import app, flags, logging
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from phasejax.training.config import RunConfig
from scripts import config_flag

UNFINISHED = 3  # exit status of a run that was asked to stop and can be continued
console = Console(stderr=True)


def run(main: Callable[[list[str]], int | None]) -> None:
    """app.run, with the JAX flags defined and misspelt config fields named."""
    import jax

    jax.config.config_with_absl()
    try:
        config_flag.check_fields(sys.argv[1:])
    except app.UsageError as error:
        fail(error)
    app.run(main, flags_parser=_parse)


def _parse(argv: list[str]) -> list[str]:
    try:
        rest = flags.FLAGS(argv)
    except (flags.Error, FileNotFoundError, TypeError, ValueError) as error:
        fail(error)
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)  # what checkpoints say of themselves hides progress
    return rest


def fail(error: Exception) -> NoReturn:
    """Ends the program with the message alone; a traceback would hide it."""
    console.print(f"error: {error}", style="bold red", markup=False, soft_wrap=True)
    sys.exit(2)


def guarded(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function; errors that name a remedy end the program in one line."""
    try:
        return function(*args, **kwargs)
    except (ValueError, FloatingPointError) as error:
        fail(error)


def bars(*extra: Any) -> Progress:
    """The one look of progress bars."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        *extra,
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        console=console,
        redirect_stdout=False,
    )


def steps_left(config: RunConfig, row: dict[str, Any]) -> int:
    """Most steps that a run can still take after a logged row."""
    train, stage = config.train, row["stage"]
    later = sum(s.max_steps for s in train.stages[stage:]) + train.final_steps
    return max(0, later - row["stage_step"])


@contextlib.contextmanager
def training_progress(
    config: RunConfig, *, quiet: bool
) -> Iterator[Callable[[dict[str, Any]], None] | None]:
    """Yields a report function that draws steps, stage, loss and accuracy."""
    if quiet:
        yield None
        return
    train = config.train
    with bars(TextColumn("{task.fields[note]}")) as progress:
        task = progress.add_task(config.name, total=train.max_steps, note="compiling")

        def report(row: dict[str, Any]) -> None:
            note = (
                f"stage {row['stage'] + 1}/{len(train.stages) + 1}  loss {row['loss']:.3f}"
                f"  accuracy {row['accuracy']:.3f}  {train.check_every / row['seconds']:.1f}"
                " steps/s"
            )
            total = row["step"] + steps_left(config, row)
            progress.update(task, completed=row["step"], total=total, note=note)

        yield report


@contextlib.contextmanager
def evaluation_progress(*, quiet: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """Yields a report function that draws prompts done."""
    if quiet:
        yield None
        return
    with bars() as progress:
        tasks: dict[str, Any] = {}

        def report(padding: str, done: int, total: int) -> None:
            if padding not in tasks:
                tasks[padding] = progress.add_task(f"{padding} padding", total=total)
            progress.update(tasks[padding], completed=done)

        yield report


def show_profiles(workdir: str) -> None:
    """Prints the accuracy by phase of a run's results, with Wilson intervals."""
    from phasejax.analysis.runs import read_run
    from phasejax.evals.results import correct_matrix
    from phasejax.statistics import wilson

    run_ = read_run(workdir)
    period = run_.stride or run_.config["residues"]
    table = Table(title=f"{run_.name}: accuracy in % by phase of the key (95% Wilson)")
    table.add_column("phase", justify="right")
    columns = {}
    for condition, result in run_.results.items():
        correct, _ = correct_matrix(result.rows)
        folded = correct.reshape(len(correct), -1, period)
        hits, trials = folded.sum((0, 1)).astype(int), folded.shape[0] * folded.shape[1]
        low, high = wilson(hits, [trials] * period)
        columns[condition] = [
            f"{100 * h / trials:5.1f}  [{100 * a:.1f}, {100 * b:.1f}]"
            for h, a, b in zip(hits, low, high, strict=True)
        ]
        table.add_column(condition.replace("_", "-"), justify="right")
    for phase, cells in enumerate(zip(*columns.values(), strict=True)):
        table.add_row(str(phase), *cells)
    Console().print(table)
