"""The smallest session that still shows a difference.

Steps are left out in ever smaller groups as long as a difference of the same kind remains: the same API and
field and values. What a left-out step would have given others is replaced by their `else`.
"""

import time
from collections.abc import Callable, Iterator

from tests.oracle.judge import Difference
from tests.oracle.session import Session, names_in
from tests.oracle.values import labels_in

ATTEMPTS_MAX = 40
#: behind which no attempt begins: a session in which something hangs takes long
SECONDS_MAX = 60.0


def shrunk(
    session: Session,
    difference: Difference,
    compare: Callable[[Session], list[Difference]],
    attempts_max: int = ATTEMPTS_MAX,
) -> Session:
    """A smaller session with a difference of this kind."""
    kind, label = difference.kind, difference.step.label
    attempts = 0
    deadline = time.monotonic() + SECONDS_MAX

    def go_on() -> bool:
        return attempts < attempts_max and time.monotonic() < deadline

    def shows(candidate: Session) -> bool:
        nonlocal attempts
        attempts += 1
        return any(found.kind == kind for found in compare(candidate))

    for candidate in _guesses(session, label):
        if go_on() and len(candidate.steps) < len(session.steps) and shows(candidate):
            session = candidate
    size = max(1, len(session.steps) // 2)
    while go_on():
        smaller = False
        end = len(session.steps)
        while end > 0 and go_on():
            # from behind: what comes after the difference goes first
            labels = {step.label for step in session.steps[max(0, end - size) : end] if not step.cleanup}
            candidate = session.without(labels)
            if labels and shows(candidate):
                session = candidate
                smaller = True
            end -= size
        if size == 1 and not smaller:
            break
        size = size if smaller and size == 1 else max(1, size // 2)
    return session


def _guesses(session: Session, label: str) -> Iterator[Session]:
    """What is likely to be enough: what comes before the difference, what its step needs and is about."""
    labels = [step.label for step in session.steps]
    end = labels.index(label) + 1
    clean = tuple(step for step in session.steps[end:] if step.cleanup)
    before = session.steps[:end]
    yield session.with_steps(before + clean)
    needed = {label}
    for step in reversed(before):
        if step.label in needed:
            needed |= labels_in(step.fields)
    names = set(names_in(before[-1].fields))
    making = {
        step.label
        for step in before
        if (step.api == "CreateTopics" or step.until is not None) and names & set(names_in(step.fields))
    }
    close = needed | making
    yield session.with_steps(tuple(step for step in before if step.label in close) + clean)
    related = {step.label for step in before if names & set(names_in(step.fields))}
    yield session.with_steps(tuple(step for step in before if step.label in close | related) + clean)


def told(session: Session, found: list[Difference]) -> str:
    """A session and its differences as a person reads them."""
    by_label: dict[str, list[Difference]] = {}
    for difference in found:
        by_label.setdefault(difference.step.label, []).append(difference)
    lines = [f"session of seed {session.seed}"]
    for step in session.steps:
        if step.cleanup:
            continue
        lines.append(f"  {step}")
        for difference in by_label.get(step.label, ()):
            lines.append(f"      ≠ {difference.path}")
            lines.append(f"        Kafka   {difference.kafka}")
            lines.append(f"        Tidelog {difference.here}")
    return "\n".join(lines)
