"""What holds for every test: time limits are pytest's; those of single examples break on a busy machine."""

import sys
from pathlib import Path

from hypothesis import settings

# what tests of several folders share
sys.path.insert(0, str(Path(__file__).parent / "support"))

settings.register_profile("tidelog", deadline=None)
settings.load_profile("tidelog")
