"""Modules of the tests as programs in processes of their own: their command line, and what they can import.

    subprocess.Popen([*program("tests.chaos.cluster_copier"), address], env=environment())

The children import the tests and Tidelog from where this process has them, whatever folder it runs in.
"""

import os
import sys
from pathlib import Path

import tidelog

ROOT = Path(__file__).resolve().parents[2]
#: where this process imports Tidelog from
SOURCE = Path(tidelog.__file__).resolve().parents[1]


def program(module: str) -> list[str]:
    """The command line that runs a module, to which its arguments are added."""
    return [sys.executable, "-m", module]


def environment(**more: str) -> dict[str, str]:
    """The environment of this process, with the tests and Tidelog on the path, and `more`."""
    folders = (str(ROOT), str(SOURCE), os.environ.get("PYTHONPATH"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders)), **more}
