"""What holds for every test: time limits are pytest's; those of single examples break on a busy machine."""

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tidelog.testing.cluster import RunningCluster

# Where the suite runs in the background (`nohup make test &`) SIGINT is ignored, and children inherit that:
# they would not stop when a test sends what Ctrl-C sends. With a handler here they get the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("tidelog", deadline=None)
settings.load_profile("tidelog")


@pytest.fixture(scope="session")
def crowded_cluster() -> "Iterator[RunningCluster]":
    """Three brokers with 3,000 partitions; see `support/crowded_cluster`."""
    from tests.support.crowded_cluster import running

    with running() as cluster:
        yield cluster
