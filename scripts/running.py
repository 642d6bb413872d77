# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""What the scripts share: one-line errors, progress with ETA, tables, the report."""

import concurrent.futures
import contextlib
import functools
import json
import math
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from absl import app, flags, logging
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from phasejax.files import write_atomic, write_error
from phasejax.training.config import RunConfig
from scripts import config_flag

INTERRUPTED = 128 + signal.SIGINT  # exit status of what Ctrl-C ended, as shells have it
UNFINISHED = 3  # exit status of a run that was asked to stop and can be continued
CLOCK_FILE = "seconds.json"
VALUES = {  # what parsers of flags say, and what they mean
    "invalid literal for int()": "a whole number",
    "could not convert string to float": "a number",
    "Non-boolean argument": "true or false",
}
console = Console(stderr=True)


def run(main: Callable[[list[str]], int | None], *, first: str | None = None) -> None:
    """app.run, with the JAX flags defined; whatever names a remedy ends the program in one line.

    Args:
        main: maps flags to arguments; its result is the exit status.
        first: the flag that an argument without a name was probably meant for.
    """
    import jax

    jax.config.config_with_absl()
    if "config" in flags.FLAGS:
        try:
            config_flag.check_fields(sys.argv[1:])
            config_flag.check_file(sys.argv[1:])
        except app.UsageError as error:
            fail(error)
    parse = functools.partial(_parse, first=first)
    app.run(functools.partial(guarded, main), flags_parser=parse)


def _parse(argv: list[str], *, first: str | None) -> list[str]:
    try:
        if argv[1:] and argv[1][:1] != "-":  # before a flag that is required is missed
            _refuse_unnamed(argv[1:], first)
        rest = flags.FLAGS(argv)
        _refuse_unnamed(rest[1:], first)
        _refuse_empty(argv[0])
    except flags.IllegalFlagValueError as error:
        fail(_in_words(error))
    except (flags.Error, FileNotFoundError, TypeError, ValueError) as error:
        fail(error)
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)  # what checkpoints say of themselves hides progress
    return rest


def _in_words(error: flags.IllegalFlagValueError) -> Exception:
    """What absl-py says of a value, with what was expected instead."""
    found = re.match(r"flag --([^=]+)=(.*?): (.*)", str(error), re.DOTALL)
    if found is None:
        return error
    name, value, reason = found.groups()
    if "must have a value other than None" in reason:
        return ValueError(f"--{name} is missing: write --{name}=VALUE.")
    for sign, kind in VALUES.items():
        if sign in reason:
            return ValueError(f"--{name}={value}, but it must be {kind}: change it.")
    return error


def _refuse_unnamed(arguments: list[str], first: str | None) -> None:
    if arguments:
        remedy = f"did you mean --{first}={arguments[0]}?" if first else "write --NAME=VALUE."
        raise ValueError(f"{arguments[0]!r} stands without the name of a flag: {remedy}")


def _refuse_empty(script: str) -> None:
    for flag in flags.FLAGS.get_key_flags_for_module(script):
        value = flag.value
        if flag.present and isinstance(value, str | list) and (not value or "" in list(value)):
            raise ValueError(f"--{flag.name} has an empty value: give it one or leave it out.")


def fail(error: Exception) -> NoReturn:
    """Ends the program with the message alone; a traceback would hide it."""
    console.print(f"error: {error}", style="bold red", markup=False, soft_wrap=True)
    sys.exit(2)


def guarded(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function; errors that name a remedy end the program in one line.

    So do those of the system, such as a full disk, and Ctrl-C. With --verbosity=1 the traceback is
    shown.
    """
    try:
        return function(*args, **kwargs)
    except (ValueError, FloatingPointError) as error:
        if logging.level_debug():
            raise
        fail(error)
    except OSError as error:
        if logging.level_debug():
            raise
        if error.errno is None:  # one of ours, which says its own remedy
            fail(error)
        fail(OSError(f"{error}: mend that; the same command continues."))
    except KeyboardInterrupt:
        if logging.level_debug():
            raise
        console.print("Stopped; nothing stored is lost, and the same command starts again.")
        sys.exit(INTERRUPTED)


def check_folder(name: str, path: Path) -> None:
    """Makes a folder that will be written to, if need be, before anything long begins.

    Raises:
        ValueError: naming it, if that cannot be.
    """
    if error := write_error(path):
        raise ValueError(
            f"{name} {path} is not a folder that can be written to ({error.strerror}): move what is"
            " there, or choose another."
        ) from error


def check_json(path: str | None) -> None:
    """Checks that a file of numbers can be written, before they are measured.

    Raises:
        ValueError: naming it, if it cannot.
    """
    if path is not None:
        check_folder("--json in", Path(path).parent)
        if Path(path).is_dir():
            raise ValueError(f"--json={path} is a folder: name a file.")


def write_json(path: str | None, result: dict[str, Any]) -> None:
    """Writes numbers, if there is a file for them."""
    if path is not None:
        write_atomic(Path(path), json.dumps(result, indent=2) + "\n")


def read_seconds(workdir: Path) -> float | None:
    """Seconds that the runs in a folder and their report took; None if that is not known."""
    try:
        seconds = json.loads((workdir / CLOCK_FILE).read_text(encoding="utf-8"))["seconds"]
        return float(seconds) if 0 <= float(seconds) < math.inf else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def total_seconds(workdir: Path, spent: float) -> float:
    """Adds the seconds of this call to those of earlier ones on the same runs."""
    seconds = spent + (read_seconds(workdir) or 0.0)
    workdir.mkdir(parents=True, exist_ok=True)
    write_atomic(workdir / CLOCK_FILE, json.dumps({"seconds": seconds}))
    return seconds


def serve() -> None:
    """Makes this process of a pool leave Ctrl-C to its parent, and end when that does.

    Of itself it would wait for ever for the work of a parent that was killed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def write_report(
    workdirs: Sequence[str | Path],
    report: Path,
    *,
    permutations: int,
    seconds: Callable[[], float | None],
) -> Path:
    """Summarizes finished runs and writes the report.

    Args:
        workdirs: folders of the runs.
        report: folder of the report.
        permutations: of every test.
        seconds: says what the job took; called once all tests are done.

    Raises:
        ValueError: if a run cannot be read.
    """
    from phasejax.analysis import report as pages
    from phasejax.analysis.runs import read_run
    from phasejax.analysis.summary import summarize

    loaded = sorted(  # whoever asks, the same report
        map(read_run, workdirs),
        key=lambda run: (run.recipe, run.variant.order, run.name, run.seed),
    )
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with (
        console.status("Testing for periods, drawing the report"),
        concurrent.futures.ProcessPoolExecutor(
            mp_context=multiprocessing.get_context("spawn"),
            initializer=serve,
        ) as pool,
    ):
        summary = summarize(loaded, permutations=permutations, map_runs=pool.map)
        taken = seconds()
        summary["wall_seconds"] = None if taken is None else round(taken, 1)
        return pages.write_report(loaded, summary, report)


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


def tracked(description: str, items: Sequence[Any]) -> Iterator[Any]:
    """The items, with a bar of how many are done."""
    with bars() as progress:
        yield from progress.track(items, description=description)


def show_numbers(title: str, numbers: dict[str, float]) -> None:
    """Prints numbers as a table of two columns."""
    table = Table("quantity", title=title)
    table.add_column("value", justify="right")
    for name, value in numbers.items():
        table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
    Console().print(table)


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
        task = progress.add_task(config.name, total=train.max_steps, note="starting")

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
