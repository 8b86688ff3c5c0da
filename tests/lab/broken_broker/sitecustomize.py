"""Python imports this at its start where this folder is on PYTHONPATH: brokers then carry a wrong edit.

`TIDELOG_LAB_MUTANT` names it (see `lab_mutants` and `lab_group_mutants`). Only broker processes are changed;
clients, and the process that runs the scenario, are what they are. A broker that cannot be broken ends:
Python alone would tell of the fault, and go on with a broker that is right.
"""

import os
import sys

_name = os.environ.get("TIDELOG_LAB_MUTANT")
if _name and "tidelog.server.child_broker" in sys.orig_argv:
    try:
        from lab_group_mutants import GROUP_MUTANTS
        from lab_mutants import MUTANTS

        {**MUTANTS, **GROUP_MUTANTS}[_name]()
    except Exception as fault:
        raise SystemExit(f"the wrong edit {_name!r} cannot be made: {fault!r}") from fault
