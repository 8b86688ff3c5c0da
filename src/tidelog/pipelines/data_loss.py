"""Records that a query had still to read and that are not there any more: an error, or a warning."""

import logging

from tidelog.client.faults import ClientFault

log = logging.getLogger(__name__)

WHAT_TO_DO = (
    "The topic was truncated, deleted, made anew, or its retention is shorter than the query's delay. To go"
    " on with what is there, set option failOnDataLoss to false; to begin anew, use another checkpoint"
)


class DataLoss(ClientFault):
    """Records that the query had still to read are not there any more."""


def report_loss(what: str, *, fail: bool) -> None:
    """Say what is lost, and what to do; raises DataLoss with `fail`, the option failOnDataLoss."""
    if fail:
        raise DataLoss(f"{what}. {WHAT_TO_DO}")
    log.warning("%s; failOnDataLoss is false, so the query goes on", what)
