"""Wrong edits of the commit protocol that its tests must notice: name, old text, new text."""

import sys
from pathlib import Path
from types import ModuleType

from tidelog.pipelines import commit_protocol

_DECIDING = """\
    is_ours: bool = yield WriteDecision(driver, decision)
    if is_ours:
        # Within the driver's own, short transaction: were they open now but not when it is committed, then
        # that would have timed out as well.
        still_open: frozenset[Transaction] = frozenset((yield StillOpen(transactions)))
"""

MUTANTS: list[tuple[str, str, str]] = [
    (
        "transactions are ended before the batch is decided",
        "    is_ours: bool = yield WriteDecision(driver, decision)\n",
        "    yield End(transactions, committed=True)\n"
        "    is_ours: bool = yield WriteDecision(driver, decision)\n",
    ),
    (
        "a fenced driver goes on",
        "    if not is_ours:\n",
        "    if False:\n",
    ),
    (
        "no check whether the batch was decided before",
        "if log.decided_batch_id >= batch_id:",
        "if False:",
    ),
    (
        "the check misses the batch itself",
        "if log.decided_batch_id >= batch_id:",
        "if log.decided_batch_id > batch_id:",
    ),
    (
        "the commit log is read before the claim",
        "    driver: Driver = yield Claim(query)\n    log: CommitLog = yield ReadCommitLog(query)\n",
        "    log: CommitLog = yield ReadCommitLog(query)\n    driver: Driver = yield Claim(query)\n",
    ),
    (
        "what an earlier driver decided is not finished",
        "    if log.decision is not None and not log.is_settled:\n",
        "    if False:\n",
    ),
    (
        "a replay commits what it wrote",
        "            yield End(unwanted, committed=False)\n        swept",
        "            yield End(unwanted, committed=True)\n        swept",
    ),
    (
        "a batch is marked done before its transactions are ended",
        "    if decision.transactions:\n        outcomes",
        "    yield MarkDone(decision.query, decision.batch_id)\n"
        "    if decision.transactions:\n        outcomes",
    ),
    (
        "the sweep takes the next batch too",
        "opened_for <= decided_batch_id",
        "opened_for <= decided_batch_id + 1",
    ),
    (
        "nothing is swept",
        "    if rubbish:\n",
        "    if False:\n",
    ),
    (
        "the sweep comes before the decision",
        "    decision = Decision(query, batch_id, transactions)\n",
        "    decision = Decision(query, batch_id, transactions)\n    yield from _sweep(query, batch_id)\n",
    ),
    (
        "transactions that are gone are decided all the same",
        "        if gone:\n",
        "        if False:\n",
    ),
    (
        "transactions are looked at before the driver's own one is open",
        _DECIDING,
        "    seen = yield StillOpen(transactions)\n"
        + _DECIDING.replace("(yield StillOpen(transactions))", "seen"),
    ),
    (
        "attempts of a task share a transactional id",
        "{_SEPARATOR}{partition}{_SEPARATOR}{attempt}",
        "{_SEPARATOR}{partition}",
    ),
    (
        "a failed job aborts without a look whether it was decided",
        "        log = yield ReadCommitLog(query)\n    if log.decision is None:\n",
        "        yield ReadCommitLog(query)\n    if log.decision is None:\n",
    ),
    (
        "a failed job does not finish what was decided",
        "    elif not log.is_settled:\n        yield from _end_decided(log.decision)\n",
        "",
    ),
    (
        "a failed job leaves open what was not reported",
        "    swept = yield from _sweep(query, batch_id)\n    is_decided",
        "    swept = 0\n    is_decided",
    ),
    (
        "a failed job does not claim its name",
        "        yield Claim(query)\n        log = yield ReadCommitLog(query)\n",
        "        log = yield ReadCommitLog(query)\n",
    ),
    (
        "a commit that is tried again aborts what it has decided",
        "    if log.decision is not None and not log.is_settled:\n",
        "    if log.decided_batch_id >= batch_id and not log.is_settled:\n"
        "        yield End(transactions, committed=False)\n"
        "    if log.decision is not None and not log.is_settled:\n",
    ),
    (
        "a lost transaction is passed over",
        "        if lost:\n",
        "        if False:\n",
    ),
]


def mutant(old: str, new: str) -> ModuleType:
    """The protocol with one edit."""
    assert commit_protocol.__file__ is not None
    source = Path(commit_protocol.__file__).read_text()
    assert source.count(old) == 1, f"{source.count(old)} places for {old!r}"
    module = ModuleType("mutated_commit_protocol")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(compile(source.replace(old, new), "mutant", "exec"), module.__dict__)
    return module
