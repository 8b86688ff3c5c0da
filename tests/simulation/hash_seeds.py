"""The same world in other processes, each with another order of its sets and dictionaries of objects."""

import subprocess
import sys

from tests.support.child_programs import environment

HASH_SEEDS = ("1", "4711")
SECONDS_MAX = 60


def assert_same_output(imported: str, expression: str) -> None:
    """`expression`, over a module of the tests imported as `w`, prints the same under every hash seed."""
    script = f"import {imported} as w; print({expression})"
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env=environment(PYTHONHASHSEED=hash_seed),
            capture_output=True,
            check=True,
            text=True,
            timeout=SECONDS_MAX,
        ).stdout
        for hash_seed in HASH_SEEDS
    ]
    assert outputs[0].strip()
    assert len(set(outputs)) == 1
