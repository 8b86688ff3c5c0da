"""Python imports this at its start where this folder is on PYTHONPATH: servers then carry a wrong edit.

`TIDELOG_LAB_MUTANT` names it. Only broker processes are changed (see `lab_mutants` and `lab_group_mutants`),
or only gateways (`lab_gateway_mutants`); clients, and the process that runs the scenario, are what they are.
A server that cannot be broken ends: Python alone would tell of the fault, and go on with one that is right.
"""

import os
import sys

_name = os.environ.get("TIDELOG_LAB_MUTANT")
_is_broker = "tidelog.server.child_broker" in sys.orig_argv
if _name and (_is_broker or "gateway" in sys.orig_argv):
    try:
        from lab_gateway_mutants import GATEWAY_MUTANTS
        from lab_group_mutants import GROUP_MUTANTS
        from lab_mutants import MUTANTS

        _known = {**MUTANTS, **GROUP_MUTANTS, **GATEWAY_MUTANTS}[_name]
        if (_name in GATEWAY_MUTANTS) != _is_broker:
            _known()
    except Exception as fault:
        raise SystemExit(f"the wrong edit {_name!r} cannot be made: {fault!r}") from fault
