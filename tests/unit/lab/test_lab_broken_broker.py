"""The wrong edits that scenarios must notice change something that is there.

They are made in processes that end with the test; `make lab-test` has the scenarios notice them.
"""

import os
import subprocess
import sys
from pathlib import Path

BROKEN = Path(__file__).parents[2] / "lab" / "broken_broker"
_MAKE_ALL = """
from lab_gateway_mutants import GATEWAY_MUTANTS
from lab_group_mutants import GROUP_MUTANTS
from lab_mutants import MUTANTS
for make in (*MUTANTS.values(), *GROUP_MUTANTS.values(), *GATEWAY_MUTANTS.values()):
    make()
print("made")
"""


def run(*arguments: str, mutant: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(BROKEN), "TIDELOG_LAB_MUTANT": mutant}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False, env=environment
    )


def test_every_wrong_edit_can_be_made() -> None:
    done = run("-c", _MAKE_ALL)
    assert (done.stdout, done.stderr) == ("made\n", "")


def test_a_name_that_is_not_there_is_refused() -> None:
    done = run("-c", "import os, lab_edits; lab_edits.edit(os, 'no_such_name', None)")
    assert "has no no_such_name" in done.stderr and done.returncode == 1


def test_a_broker_that_cannot_be_broken_does_not_start() -> None:
    done = run("-m", "tidelog.server.child_broker", mutant="no such edit")
    assert "the wrong edit 'no such edit' cannot be made" in done.stderr and done.returncode == 1
