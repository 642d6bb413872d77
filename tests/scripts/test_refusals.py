# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Mistakes on the command line: each is one line, says the remedy and touches nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = {
    "syntax.py": "x = 1\nfoo(\n",
    "import.py": "import phasejacks\n",
    "attribute.py": "import math\ndef get_config():\n    return math.foo\n",
    "nothing.py": "x = 1\n",
    "number.py": "def get_config():\n    return 3\n",
    "field.py": (
        "from configs.laptop.common import laptop\n\n"
        "def get_config():\n    return laptop('x', windw=3)\n"
    ),
    "file": "",
    "evaluated/config.json": "{",
    "evaluated/results": "",
    "runs/full-seed0": "",
}
W8S8 = "--config=configs/laptop/w8s8.py"
CASES = [
    # Arguments without a name.
    ("reproduce full", "'full' stands without the name of a flag: did you mean --preset=full?"),
    ("reproduce --workers=1 full", "did you mean --preset=full?"),
    ("report runs/quick", "did you mean --stored=runs/quick?"),
    ("evaluate runs/w8s8", "did you mean --workdir=runs/w8s8?"),
    ("bench_train w8s8", "did you mean --config=w8s8?"),
    ("convert_checkpoint flash", "did you mean --source=flash?"),
    (f"train w8s8 {W8S8}", "'w8s8' stands without the name of a flag"),
    ("bench_kernels cpu", "'cpu' stands without the name of a flag"),
    ("measure_statistics 2", "'2' stands without the name of a flag"),
    # Missing, empty, repeated and unknown ones.
    ("train", " is missing: write --"),
    ("train --config", "--config has an empty value: name a file"),
    ("train --config= --workdir=@/new", "--config has an empty value: name a file"),
    (f"train {W8S8}", "--workdir is missing: write --workdir=VALUE"),
    ("evaluate", "--workdir is missing: write --workdir=VALUE"),
    ("convert_checkpoint", " is missing: write --"),
    ("reproduce --runs=", "--runs has an empty value: give it one or leave it out"),
    ("reproduce --seeds=", "--seeds has an empty value"),
    ("reproduce --seeds=1,", "--seeds has an empty value"),
    ("reproduce --workdir=", "--workdir has an empty value"),
    (f"train {W8S8} --workdir=", "--workdir has an empty value"),
    ("bench_train --json=", "--json has an empty value"),
    ("reproduce --seeds=1,2,1", "--seeds names 1 more than once: name it once"),
    ("reproduce --runs=w8s8,w8s8", "--runs names w8s8 more than once"),
    ("reproduce --override=seed=", "--override=seed=: every run has its own seed"),
    ("reproduce --override=name=1", "every run has its own name"),
    ("reproduce --override=window=4 --override=window=6", "changes window a second time"),
    ("report --workdir=x", "Unknown command line flag 'workdir'"),
    ("report --preset=full", "Unknown command line flag 'preset'"),
    # Values that are of no use.
    (f"train {W8S8} --workdir=@/new --config.window=a", "--config.window=a, .* a whole number"),
    (f"train {W8S8} --workdir=@/new --config.window=", "--config.window=, .* a whole number"),
    (f"train {W8S8} --workdir=@/new --config.b1=a", "--config.b1=a, but it must be a number"),
    (f"train {W8S8} --workdir=@/new --quiet=a", "--quiet=a, but it must be true or false: change"),
    (f"train {W8S8} --workdir=@/new --config.qk_norm=a", "--config.qk_norm=a, .* true or false"),
    ("reproduce --workers=a", "--workers=a, but it must be a whole number"),
    ("reproduce --seeds=a", "--seeds=a are not whole numbers: write them as --seeds=0,1,2"),
    ("reproduce --override=num_records=8", "Run w12s12: num_records=8, .* at least 9: .* Raise"),
    ("reproduce --override=stride=4", "Run full: stride=4 changes nothing in full attention"),
    ("reproduce --seeds=-1", "seed=-1, but it must be at least 0"),
    ("reproduce --override=num_layers=true", "num_layers=True (bool), .* a whole number"),
    ("reproduce --override=learning_rate=NaN", "learning_rate=nan (float), .* a finite number"),
    ("reproduce --override=curriculum=5", "curriculum=5 (int), .* a tuple of any length"),
    ("reproduce --override=curriculum=[[1,2,3]]", "each item a tuple of 4"),
    ("reproduce --override=demonstrations=0", "A target may stand 3 tokens before the query"),
    (f"train {W8S8} --workdir=@/new --config.learning_rate=nan", "learning_rate=nan"),
    (f"train {W8S8} --workdir=@/new --config.clip_norm=inf", "clip_norm=inf"),
    # Files.
    ("train --workdir=@/new --config=@/syntax.py", "@/syntax.py, line 2: SyntaxError: "),
    ("train --workdir=@/new --config=@/import.py", "@/import.py, line 1: ModuleNotFoundError: "),
    ("train --workdir=@/new --config @/attribute.py", "@/attribute.py, line 3: AttributeError: "),
    ("train --workdir=@/new --config=@/nothing.py", "@/nothing.py has no get_config(): define"),
    ("train --workdir=@/new --config=@/number.py", "@/number.py: get_config() returns int"),
    ("train --workdir=@/new --config=@/field.py", "@/field.py, line 4: .* mean 'window'"),
    ("train --workdir=@/new --config=@/missing.py", "@/missing.py is not a file"),
    (f"train {W8S8} --workdir=@/file", "@/file"),
    ("reproduce --report=@/file --workdir=@/new", "--report @/file is not a folder"),
    ("reproduce --report=@/report --workdir=@/file", "--workdir @/file is not a folder"),
    ("reproduce --report=@/report --workdir=@/runs", "@/runs/full-seed0 is not a folder"),
    ("evaluate --workdir=@/file", "--workdir: @/file is not a folder that can be written to"),
    ("evaluate --workdir=@/evaluated", "@/evaluated/results is not a folder that can be written"),
    ("report --stored=@/new", "--stored=@/new holds no finished run"),
    ("bench_train --json=@/file/x.json", "--json in @/file is not a folder"),
    ("bench_decode --json=@/runs", "--json=@/runs is a folder: name a file"),
    ("bench_decode --json=", "--json has an empty value"),
    ("bench_decode transformers", "'transformers' stands without the name of a flag"),
    ("bench_decode --compare=torch", "flag --compare=torch: value should be one of"),
    ("bench_decode --contexts=0", "flag --contexts=0: 0 is not a positive integer"),
    ("bench_decode --contexts=1K", "--contexts=1K, but it must be a whole number"),
    ("bench_decode --repeats=0", "flag --repeats=0"),
    ("bench_kernels --json=@/runs", "--json=@/runs is a folder: name a file"),
    ("measure_statistics --json=@/file/x.json", "--json in @/file is not a folder"),
    # The peer of the benchmark.
    (
        "bench_train --compare=torch --config=configs/laptop/w8s8_vector.py",
        "gate='vector', but --compare=torch times only gate='scalar'",
    ),
]


@pytest.fixture(scope="module")
def called(tmp_path_factory, script_env):
    """Folder of the files, and exit status and output by command."""
    folder = tmp_path_factory.mktemp("refused")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    commands = [command for command, _ in CASES]
    asked = json.dumps([command.replace("@", str(folder)).split() for command in commands])
    done = subprocess.run(
        [sys.executable, "-m", "tests.scripts.forked"],
        cwd=ROOT,
        env=script_env,
        input=asked,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return folder, dict(zip(commands, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize(("command", "message"), CASES, ids=lambda text: text[:60])
def test_a_mistake_is_one_line(called, command, message):
    folder, found = called
    status, output = found[command]
    assert status == 2, output
    assert "Traceback" not in output
    errors = [line for line in output.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, output
    rest = errors[0]
    for part in message.replace("@", str(folder)).split(".*"):
        assert part.strip() in rest
        rest = rest.split(part.strip(), 1)[1]
    assert not (folder / "new").exists() or not list((folder / "new").iterdir())
