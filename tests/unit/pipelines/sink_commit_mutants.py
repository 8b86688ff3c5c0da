"""Wrong edits of the commit protocol that its tests must notice: name, old text, new text."""

import sys
from pathlib import Path
from types import ModuleType

from tidelog.pipelines import commit_protocol

MUTANTS: list[tuple[str, str, str]] = [
    (
        "transactions are ended before the batch is decided",
        "    is_ours: bool = yield WriteDecision(driver, decision)\n",
        "    yield End(decision.transactions, committed=True)\n"
        "    is_ours: bool = yield WriteDecision(driver, decision)\n",
    ),
    (
        "a fenced driver goes on",
        "    if not is_ours:\n        raise _fenced(query, batch_id)\n",
        "",
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
        "    yield from _settle(driver, log)\n    if log.decided_batch_id",
        "    if log.decided_batch_id",
    ),
    (
        "a replay commits what it wrote",
        "            yield End(unwanted, committed=False)\n        swept",
        "            yield End(unwanted, committed=True)\n        swept",
    ),
    (
        "a batch is marked done before its transactions are ended",
        "    lost: list[Transaction] = []\n",
        "    lost: list[Transaction] = []\n    yield MarkDone(decision.query, decision.batch_id)\n",
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
        "    yield from _look(decision)\n",
        "    yield from _look(decision)\n    yield from _sweep(query, batch_id)\n",
    ),
    (
        "records that are gone are decided all the same",
        "    if missing is not None:\n",
        "    if False:\n",
    ),
    (
        "a batch that is given up leaves its transactions open",
        "        yield End(decision.transactions, committed=False)\n        raise BatchTooOld",
        "        raise BatchTooOld",
    ),
    (
        "nobody looks for the records of attempts that took long",
        "    if not gone and not decision.held:\n",
        "    if not gone:\n",
    ),
    (
        "what attempts held is not published",
        "    unpublished = (*lost, *decision.held)\n",
        "    unpublished = tuple(lost)\n",
    ),
    (
        "what timed out after the decision is not published",
        "    unpublished = (*lost, *decision.held)\n",
        "    unpublished = decision.held\n",
    ),
    (
        "what was committed is published as well",
        "    unpublished = (*lost, *decision.held)\n",
        "    unpublished = decision.transactions + decision.held if lost else decision.held\n",
    ),
    (
        "publishing begins anew after a restart",
        "        yield from _publish(driver, decision, unpublished, log.published)\n",
        "        yield from _publish(driver, decision, unpublished, START)\n",
    ),
    (
        "a fenced driver counts a piece as published",
        "        is_ours: bool = yield CommitSome(driver)\n        if not is_ours:\n",
        "        is_ours: bool = yield CommitSome(driver)\n        if False:\n",
    ),
    (
        "a batch is published before it is decided",
        "    is_ours: bool = yield WriteDecision(driver, decision)\n",
        "    yield from _publish(driver, decision, decision.held, log.published) if decision.held else ()\n"
        "    is_ours: bool = yield WriteDecision(driver, decision)\n",
    ),
    (
        "it is published before the others are ended",
        "    lost: list[Transaction] = []\n",
        "    lost: list[Transaction] = []\n"
        "    if decision.transactions:\n"
        "        still = yield StillOpen(decision.transactions)\n"
        "        gone = tuple(one for one in decision.transactions if one not in frozenset(still))\n"
        "        if gone:\n"
        "            yield from _publish(driver, decision, gone, log.published)\n",
    ),
    (
        "nobody counts what was published",
        "    if position.records != decision.records.count_of(transactions):\n",
        "    if False:\n",
    ),
    (
        "attempts of a task share a transactional id",
        "{_SEPARATOR}{partition}{_SEPARATOR}{attempt}",
        "{_SEPARATOR}{partition}",
    ),
    (
        "a failed job aborts without a look whether it was decided",
        "        log = yield ReadCommitLog(query)\n        yield from _settle(driver, log)\n    if log",
        "        yield ReadCommitLog(query)\n    if log",
    ),
    (
        "a failed job does not finish what was decided",
        "        yield from _settle(driver, log)\n    if log.decision is None and",
        "    if log.decision is None and",
    ),
    (
        "a failed job leaves open what was not reported",
        "    swept = yield from _sweep(query, batch_id)\n    is_decided",
        "    swept = 0\n    is_decided",
    ),
    (
        "a failed job does not claim its name",
        "        driver: Driver = yield Claim(query)\n        log = yield",
        "        driver = Driver('', 0, 0)\n        log = yield",
    ),
    (
        "a commit that is tried again aborts what it has decided",
        "    yield from _settle(driver, log)\n    if log.decided_batch_id",
        "    if log.decided_batch_id >= batch_id and not log.is_settled:\n"
        "        yield End(decision.transactions, committed=False)\n"
        "        log = log._replace(done_batch_id=log.decided_batch_id)\n"
        "    yield from _settle(driver, log)\n    if log.decided_batch_id",
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
