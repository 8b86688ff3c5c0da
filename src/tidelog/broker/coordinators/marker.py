"""The end of a transaction, as it is written to a partition."""

from typing import NamedTuple


class Marker(NamedTuple):
    """How a transaction of a producer ended, and which coordinator says so."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int
