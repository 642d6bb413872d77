# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Result files: what an evaluation saw, row by row, and all that a later claim may rest on.

One evaluation condition is two files of a run's results folder: CONDITION.csv with one row a
prompt, and CONDITION.json saying what was run, with which versions and seeds. The JSON is written
last and holds the digest of the rows, so a pair which was cut off half way is never read as whole.
"""

import csv
import dataclasses
import datetime
import hashlib
import importlib.metadata
import io
import json
import platform
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import phasejax
from phasejax.files import write_atomic

FORMAT = 1
COLUMNS = (
    "document",
    "residue",
    "shift",
    "target_position",
    "value_position",
    "query_position",
    "key",
    "value",
    "prediction",
    "correct",
    "loss",
)
REMEDY = "run the evaluation of this run again"


@dataclasses.dataclass(frozen=True)
class Result:
    """One evaluation condition of one run.

    Attributes:
        rows: one array [rows] for each of COLUMNS: int64, loss float64.
        meta: format, condition, config, versions, checkpoint_step, val_loss, moments, created,
            rows, sha256.
    """

    rows: dict[str, np.ndarray]
    meta: dict[str, Any]


def versions() -> dict[str, str]:
    """Versions of what computed a result; nothing is imported for it."""
    names = ("jax", "flax", "numpy", "scipy")
    return {
        "python": platform.python_version(),
        "phasejax": phasejax.__version__,
        **{name: importlib.metadata.version(name) for name in names},
        "platform": platform.platform(),
    }


def write_result(
    directory: str | Path,
    condition: str,
    rows: Mapping[str, np.ndarray],
    meta: Mapping[str, Any],
) -> None:
    """Writes directory/CONDITION.csv and, after it, directory/CONDITION.json.

    Args:
        directory: the results folder of a run; made if it is missing.
        condition: name of the evaluation, such as "prefix" or "in_sequence".
        rows: one array [rows] for each of COLUMNS.
        meta: config, checkpoint_step, val_loss, moments and more; format, condition, versions,
            created, rows and sha256 are added.

    Raises:
        ValueError: a column is missing or unknown, lengths differ, or meta is not plain JSON.
    """
    if set(rows) != set(COLUMNS):
        differing = sorted(set(rows) ^ set(COLUMNS))
        raise ValueError(f"rows have other columns than {COLUMNS}: correct {differing}.")
    table = {name: np.asarray(rows[name]) for name in COLUMNS}
    shapes = {name: column.shape for name, column in table.items()}
    if len(set(shapes.values())) != 1 or len(shapes["document"]) != 1:
        raise ValueError(f"the columns of rows must be vectors of one length, not {shapes}.")
    columns = [
        [f"{loss:.9g}" for loss in table[name].tolist()]
        if name == "loss"
        else table[name].astype(np.int64).tolist()
        for name in COLUMNS
    ]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(zip(*columns, strict=True))
    content = text.getvalue()
    full = {
        "format": FORMAT,
        "condition": condition,
        "versions": versions(),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **meta,
        "rows": len(table["document"]),
        "sha256": hashlib.sha256(content.encode()).hexdigest(),
    }
    try:
        description = json.dumps(full, indent=1, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"meta of {condition!r} is not plain JSON ({error}): turn arrays into lists and"
            " replace what is not finite by None."
        ) from error
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / f"{condition}.csv", content)
    write_atomic(folder / f"{condition}.json", description)


def evaluate_command(workdir: str | Path) -> str:
    """The command that makes the results of a run again, as a shell takes it."""
    return f"python -m scripts.evaluate --workdir={shlex.quote(str(workdir))}"


def read_result(directory: str | Path, condition: str) -> Result:
    """Reads what write_result wrote.

    Args:
        directory: the results folder of a run.
        condition: name of the evaluation.

    Returns:
        The rows and the meta.

    Raises:
        ValueError: a file is missing, truncated or altered; the message names it and the remedy.
    """
    description, table = (Path(directory) / f"{condition}.{end}" for end in ("json", "csv"))
    remedy = f"{REMEDY}, {evaluate_command(Path(directory).parent)}"
    for path in (description, table):
        if not path.is_file():
            raise ValueError(f"{path} is missing: {remedy}")
    try:
        meta = json.loads(description.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{description} is not complete JSON ({error}): {remedy}") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        found = meta.get("format") if isinstance(meta, dict) else type(meta).__name__
        raise ValueError(
            f"{description} has format {found}, but this version reads {FORMAT}: {remedy}"
        )
    content = table.read_bytes()
    if hashlib.sha256(content).hexdigest() != meta.get("sha256"):
        raise ValueError(
            f"{table} is not the file that {description.name} describes"
            f" ({len(content)} bytes; {meta.get('rows')} rows were written): it was cut off or"
            f" altered, so {remedy}"
        )
    lines = list(csv.reader(io.StringIO(content.decode())))
    if tuple(lines[0]) != COLUMNS or len(lines) - 1 != meta.get("rows"):
        raise ValueError(f"{table} does not have the columns and rows of a result: {remedy}")
    rows = {
        name: np.array([line[i] for line in lines[1:]]).astype(
            np.float64 if name == "loss" else np.int64
        )
        for i, name in enumerate(COLUMNS)
    }
    return Result(rows, meta)


def correct_matrix(rows: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The crossed tables of a result: every document at every residue.

    Args:
        rows: columns [D * M], in any order.

    Returns:
        Whether each prompt was answered, int64 [D, M], and the position of its key, int64 [D, M];
        rows are documents, columns residues, both ascending.

    Raises:
        ValueError: some document is not seen exactly once at each residue.
    """
    documents, document = np.unique(rows["document"], return_inverse=True)
    residue = np.asarray(rows["residue"])
    residues = int(residue.max(initial=-1)) + 1
    seen = np.zeros((len(documents), residues), np.int64)
    if residue.min(initial=0) >= 0:
        np.add.at(seen, (document, residue), 1)
    if not seen.size or (seen != 1).any():
        wrong = documents[(seen != 1).any(axis=1)].tolist()
        raise ValueError(
            f"rows are not crossed: of {len(documents)} documents {len(wrong)} (first"
            f" {wrong[:3]}) are not seen exactly once at each of {residues} residues, and document"
            f" effects would pass for phase effects: {REMEDY}."
        )
    order = np.lexsort((residue, document))
    shape = seen.shape
    return (
        np.asarray(rows["correct"])[order].reshape(shape).astype(np.int64),
        np.asarray(rows["target_position"])[order].reshape(shape).astype(np.int64),
    )
