"""The tests of this folder run whole scenarios on real clusters; `make lab-test` runs them.

They are left out of an ordinary run: together they take minutes. The frame has quick tests in tests/unit/lab.
"""

import os

if not os.environ.get("TIDELOG_LAB_TESTS"):
    collect_ignore_glob = ["*"]
