# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles every TPU kernel for real chips on a machine without one, and writes what came of it.

    make aot

    python -m scripts.aot_compile --json=docs/results/aot_tpu.json --table=docs/results/aot_tpu.md

Needs the extra `aot`: libtpu holds the TPU compilers, Mosaic and XLA. All operands are parameters
of the program, in HBM as a model's would be. Every compile has a time limit, in a process that is
ended when it passes it: a block that is far too large makes the compiler hang rather than fail.
What does not compile is a row with the reason. Nothing is run, so nothing here is a speed: bytes
and operations are those that the kernels declare, VMEM is what the compiler gave to the largest
kernel of the program, HBM what the program holds at once. About half an hour on one core; choose
with --ops and --devices, which keeps the other rows of the file.
"""

import dataclasses
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import flags

from phasejax.files import write_atomic
from scripts import running
from scripts.kernel_programs import Program, function_of, programs
from scripts.time_limit import Worker

TOPOLOGIES = {"v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "tpu7x": "tpu7x:2x2x1"}
# The compiler asks the machine for none of this, but looks for a TPU unless it is told.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}
VMEM = "1"  # the compiler's number for this memory

_JSON = flags.DEFINE_string("json", None, "File to write the rows to; others in it are kept.")
_TABLE = flags.DEFINE_string("table", None, "Markdown file to write the rows to.")
_OPS = flags.DEFINE_list(
    "ops", [], "Ops to compile; all that have a TPU kernel and shapes if none."
)
_DEVICES = flags.DEFINE_list("devices", list(TOPOLOGIES), "Chips to compile for.")
_TIMEOUT = flags.DEFINE_integer("timeout", 300, "Seconds for one compile.", lower_bound=1)

Row = dict[str, Any]


def kernel_facts(text: str) -> Row:
    """Bytes and operations that the kernels of a compiled program declare, and VMEM of the largest.

    Args:
        text: the compiled program, in the compiler's own notation.
    """
    calls = [line for line in text.splitlines() if 'custom_call_target="tpu_custom_call"' in line]

    def declared(name: str) -> int:
        return sum(int(n) for line in calls for n in re.findall(rf'"{name}":"(\d+)"', line))

    used = r'"used_scoped_memory_configs":\[(.*?)\]'
    sizes = [
        int(size)
        for line in calls
        for found in re.findall(used, line)
        for space, size in re.findall(r'"memory_space":"(\d+)".*?"size":"(\d+)"', found)
        if space == VMEM
    ]
    return {
        "kernels": len(calls),
        "vmem_bytes": max(sizes, default=0),
        "flops": declared("flops"),
        "bytes": declared("bytes_accessed"),
    }


def compile_program(program: Program, device: str) -> Row:
    """Compiles one program for one chip and reads what the compiler assigned."""
    import jax
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    function, operands = function_of(program, "pallas_tpu")
    chip = topologies.get_topology_desc(TOPOLOGIES[device], platform="tpu").devices[0]
    sharding = SingleDeviceSharding(chip)
    operands = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), operands
    )
    lowered = jax.jit(function).lower(*operands)
    began = time.perf_counter()
    compiled = lowered.compile()
    seconds = time.perf_counter() - began
    memory = compiled.memory_analysis()
    parts = ("argument", "output", "temp")
    hbm = sum(getattr(memory, f"{part}_size_in_bytes") for part in parts)
    return kernel_facts(compiled.as_text() or "") | {"hbm_bytes": hbm, "compile_seconds": seconds}


def versions() -> dict[str, str]:
    """Releases that the rows hold for."""
    from importlib.metadata import version

    return {name: version(name) for name in ("jax", "jaxlib", "libtpu")}


def aot_compile(
    jobs: list[tuple[Program, str]], timeout: float, report: Callable[[Row], None]
) -> None:
    """Reports one row for each program and chip, in their order."""
    worker = Worker(compile_program)
    try:
        for program, device in jobs:
            row = {"device": device} | dataclasses.asdict(program)
            try:
                row |= worker(program, device, timeout=timeout)
            except (RuntimeError, OSError) as error:  # a limit of time and a death are OSErrors
                row["error"] = str(error)[:240]
            report(row)
    finally:
        worker.close()


def _key(row: Row) -> tuple:
    return row["device"], row["op"], row["shape"], row["direction"]


def merged(old: list[Row], new: list[Row]) -> list[Row]:
    """The new rows, and the old ones of programs that still exist and were not compiled again."""
    order = [(d, *dataclasses.astuple(p)) for d in TOPOLOGIES for p in programs("pallas_tpu")]
    by_key = {_key(row): row for row in (*old, *new)}
    return [by_key[key] for key in order if key in by_key]


def as_markdown(result: dict[str, Any]) -> str:
    """The rows as a page."""
    releases = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    rows = result["rows"]
    failed = sum("error" in row for row in rows)
    lines = [
        "# TPU kernels, compiled ahead of time",
        "",
        f"Written by `make aot` with {releases}. {len(rows) - failed} of {len(rows)} programs"
        " compile; they were compiled for these chips and not run. Backward is a gradient of"
        " every real operand: the forward pass is part of it unless it only needs the operands, and"
        " where no kernel is left (no GB) it is plain JAX. VMEM is that of the largest kernel, HBM"
        " what the program holds at once, operands and results included; GB and GFLOP are what its"
        " kernels declare.",
        "",
        "| device | op | shape | direction | VMEM, MiB | HBM, GiB | compile, s | GB | GFLOP |",
        "|---|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        name = " | ".join((*_key(row)[:3], row["direction"]))
        if "error" in row:
            cells = f"{row['error'].replace('|', '/')} | | | |"
        else:
            scaled = (("vmem_bytes", 2**20), ("hbm_bytes", 2**30), ("compile_seconds", 1),
                      ("bytes", 1e9), ("flops", 1e9))  # fmt: skip
            cells = " | ".join(f"{row[field] / unit:.3g}" for field, unit in scaled)
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines) + "\n"


def write(result: dict[str, Any], json_file: str | None, table: str | None) -> None:
    """Writes one row a line, and the page."""
    if json_file:
        head = json.dumps({k: v for k, v in result.items() if k != "rows"}, indent=2)[:-2]
        rows = ",\n".join(f"    {json.dumps(row)}" for row in result["rows"])
        write_atomic(Path(json_file), f'{head},\n  "rows": [\n{rows}\n  ]\n}}\n')
    if table:
        write_atomic(Path(table), as_markdown(result))


def check_names(kind: str, names: list[str], known: list[str]) -> None:
    """Refuses a name that is not known.

    Raises:
        ValueError: naming it and what there is.
    """
    for name in names:
        if name not in known:
            raise ValueError(f"--{kind}={name} is none of {', '.join(known)}: choose among these.")


def main(_: list[str]) -> None:
    """Maps flags to arguments."""
    running.check_json(_JSON.value)
    every = programs("pallas_tpu")
    known = sorted({program.op for program in every})
    check_names("ops", _OPS.value, known)
    check_names("devices", _DEVICES.value, list(TOPOLOGIES))
    os.environ.update(ENVIRONMENT)
    try:
        result: dict[str, Any] = {"versions": versions()}
    except ImportError:
        running.fail(ValueError("libtpu is not installed: pip install -e '.[aot]', or `make aot`."))
    wanted = [p for p in every if not _OPS.value or p.op in _OPS.value]
    jobs = [(program, device) for device in TOPOLOGIES if device in _DEVICES.value
            for program in wanted]  # fmt: skip
    old: list[Row] = []
    if _JSON.value and Path(_JSON.value).exists():
        stored = json.loads(Path(_JSON.value).read_text())
        old = stored["rows"] if stored["versions"] == result["versions"] else []
    done: list[Row] = []

    def report(row: Row) -> None:
        done.append(row)
        outcome = row.get("error") or f"{row['compile_seconds']:.1f} s"
        running.console.print(f"{len(done)}/{len(jobs)}", *_key(row), outcome, markup=False)
        write(result | {"rows": merged(old, done)}, _JSON.value, _TABLE.value)

    aot_compile(jobs, _TIMEOUT.value, report)


if __name__ == "__main__":
    running.run(main)
