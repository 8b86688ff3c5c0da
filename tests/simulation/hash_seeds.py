"""The same world in other processes, each with another order of its sets and dictionaries of objects."""

import os
import subprocess
import sys
from pathlib import Path

HASH_SEEDS = ("1", "4711")
SECONDS_MAX = 60


def assert_same_output(imported: str, expression: str) -> None:
    """`expression`, over a module of this folder imported as `w`, prints the same under every hash seed."""
    script = f"import sys; sys.path.insert(0, sys.argv[1]); import {imported} as w; print({expression})"
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script, str(Path(__file__).parent)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
            timeout=SECONDS_MAX,
        ).stdout
        for hash_seed in HASH_SEEDS
    ]
    assert outputs[0].strip()
    assert len(set(outputs)) == 1
