"""The checks of `tidelog doctor` about share groups: nobody reads, locks that end unused, records that fail
again and again, dead letters that find no place.
"""

from collections.abc import Iterator

from tidelog.admin.diagnosis import (
    Examination,
    Finding,
    SeenShareGroup,
    counted,
    hint,
    ok,
    problem,
    warning,
)

CHECK = "share groups"
LAG_BIG_RECORDS = 100_000
#: so many records must have failed, and such a part of all, before a consumer is suspected and no record
FAILED_RECORDS_MIN = 10
FAILED_PART = 10
GROUP_ENABLE = "errors.deadletterqueue.group.enable"
AUTO_CREATE = "errors.deadletterqueue.auto.create.topics.enable"
NAME_PREFIX = "errors.deadletterqueue.topic.name.prefix"


def share_groups(seen: Examination) -> list[Finding]:
    """Records of share groups are read, acknowledged, and what fails finds its place."""
    if not seen.share_groups:
        return []
    found = [finding for group in seen.share_groups for finding in _group(seen, group)]
    return found or [ok(CHECK, f"{counted(len(seen.share_groups), 'share group')}, none behind or stuck")]


def _group(seen: Examination, group: SeenShareGroup) -> Iterator[Finding]:
    if group.members:
        yield from _busy(seen, group)
    else:
        yield from _deserted(seen, group)
    yield from _failing(group)
    if group.dead_letter_topic is not None:
        yield from _dead_letters(seen, group, group.dead_letter_topic)


def _deserted(seen: Examination, group: SeenShareGroup) -> Iterator[Finding]:
    lag = group.look.lag
    if not lag:
        return
    grows = group.later is not None and group.later.lag > lag
    make = warning if grows or lag >= LAG_BIG_RECORDS else hint
    more = f", {group.later.lag - lag} more in {seen.watched_seconds:.0f} s" if grows and group.later else ""
    yield make(
        CHECK,
        f"share group {group.id} has no members, and {counted(lag, 'record')} wait for it{more}",
        f"start its consumers; if it is no longer used: tidelog share delete {group.id}",
        group.id,
    )


def _busy(seen: Examination, group: SeenShareGroup) -> Iterator[Finding]:
    look, later = group.look, group.later
    last = look if later is None else later
    who = f"share group {group.id}"
    step = f"tidelog share describe {group.id} shows who has records; look at the logs of those members"
    silent = later is not None and later.said == look.said and later.lag >= look.lag > 0
    if last.lock_expiries > last.said and (last.repeated or silent):
        yield warning(
            CHECK,
            f"{who}: the locks of {counted(last.lock_expiries, 'record')} ended before anything was said of"
            f" them, {last.said} were acknowledged; {counted(last.lag, 'record')} wait",
            f"its members hang, die, or need longer than share.record.lock.duration.ms: {step}",
            group.id,
        )
    elif silent:
        yield hint(
            CHECK,
            f"{who}: {counted(group.members, 'member')} acknowledged nothing in {seen.watched_seconds:.0f} s,"
            f" while {counted(last.lag, 'record')} wait; members have {last.acquired} of them",
            f"its members need long for a record, or are stuck: {step}",
            group.id,
        )
    elif last.lag >= LAG_BIG_RECORDS:
        yield hint(
            CHECK,
            f"{who} is {counted(last.lag, 'record')} behind",
            "add members (there may be more than partitions) or make them faster",
            group.id,
        )


def _failing(group: SeenShareGroup) -> Iterator[Finding]:
    last = group.look if group.later is None else group.later
    if last.delivered_last >= FAILED_RECORDS_MIN and last.delivered_last * FAILED_PART >= last.delivered:
        kept = "" if group.dead_letter_topic else ", and what fails the last time is gone for the group"
        yield warning(
            CHECK,
            f"share group {group.id}: {last.delivered_last} of {counted(last.delivered, 'record')} were"
            f" delivered {last.limit} times, as often as is allowed{kept}",
            "so many bad records are rather a bad consumer: look at its log"
            + ("" if group.dead_letter_topic else "; the group has no topic for dead letters"),
            group.id,
        )


def _dead_letters(seen: Examination, group: SeenShareGroup, name: str) -> Iterator[Finding]:
    last = group.look if group.later is None else group.later
    topic = next((topic for topic in seen.topics if topic.name == name), None)
    told = [broker.configs for broker in seen.alive if broker.configs]
    who = f"the dead letters of share group {group.id} go to {name}"
    reason, step = "", ""
    prefixes = {str(configs[NAME_PREFIX]) for configs in told if configs.get(NAME_PREFIX) is not None}
    if prefixes and not any(name.startswith(prefix) for prefix in prefixes):
        reason = f"whose name does not begin with {min(prefixes)}"
        step = f"choose another topic, or set {NAME_PREFIX} of the brokers"
    elif topic is None:
        if not any(configs.get(AUTO_CREATE) == "true" for configs in told):
            reason = "which does not exist"
            step = f"tidelog topic create {name} --config {GROUP_ENABLE}=true"
    elif GROUP_ENABLE in topic.configs and topic.configs[GROUP_ENABLE] != "true":
        reason = "which is not for dead letters"
        step = f"tidelog config set topic {name} {GROUP_ENABLE}=true"
    if reason:
        lost = f"; {last.given_up} were given up" if last.given_up else ""
        yield problem(CHECK, f"{who}, {reason}{lost}", step, group.id)
    elif last.given_up:
        yield problem(
            CHECK,
            f"{counted(last.given_up, 'dead letter')} of share group {group.id} could not be written since"
            f" brokers started, though {name} is there now",
            "the events 'dead letters given up' of the brokers say which and why",
            group.id,
        )
    elif group.later is not None and group.look.archiving and group.later.archiving:
        yield warning(
            CHECK,
            f"{counted(group.later.archiving, 'dead letter')} of share group {group.id} wait to be written to"
            f" {name}",
            f"tidelog topic describe {name}: a partition without a leader, or too few replicas in sync",
            group.id,
        )
