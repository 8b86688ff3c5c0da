"""The checks of `tidelog doctor`: each turns an examination into findings, one of them OK if all is well.

Severities: a problem keeps clients from what they were promised, or loses records; a warning will once the
next thing goes wrong; a hint is worth knowing. A check says nothing (an empty list) about what was not seen.
"""

import ipaddress
from collections.abc import Callable, Iterator

from tidelog.admin.diagnosis import (
    REPLICAS_WANTED,
    Examination,
    Finding,
    LogRange,
    SeenBroker,
    SeenGroup,
    SeenPartition,
    SeenTopic,
    counted,
    hint,
    ok,
    problem,
    some,
    warning,
)
from tidelog.admin.diagnosis_internal_topics import internal_topics
from tidelog.admin.diagnosis_shares import share_groups
from tidelog.admin.diagnosis_storage import cuts, disks
from tidelog.admin.eligible_leaders import awaited_by, without_directory_by
from tidelog.client.api_keys import FETCH, PRODUCE
from tidelog.model.identifiers import DELAY_GROUP_PREFIX

LEADER_IMBALANCE_PERCENT = 10
LEADERS_WORTH_COMPARING = 10
LAG_BIG_RECORDS = 100_000
CLOCK_SKEW_WARNING_MS = 5_000
FUTURE_RECORDS_MS = 3_600_000
CERTIFICATE_WARNING_DAYS = 30
CERTIFICATE_PROBLEM_DAYS = 3
DAY_SECONDS = 86_400
#: before it there were no headers, no idempotence and no transactions
FETCH_OF_KAFKA_0_11 = 4
#: how many topics a command that doctor proposes names
ELECTED_TOPICS_MAX = 20
REBALANCING = frozenset({"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"})
TRANSACTION_MARGIN_MS = 10_000

Check = Callable[[Examination], list[Finding]]


def reachability(seen: Examination) -> list[Finding]:
    """Every broker answers at the address that it advertises, and it is that broker of this cluster."""
    found = [finding for broker in seen.alive for finding in _unreachable(seen, broker)]
    answering = [broker for broker in seen.alive if broker.fault is None]
    if not found and answering:
        found.append(
            ok("reachability", f"{_each(answering)} at the address advertised: {_addresses(answering)}")
        )
    return found


def _each(brokers: list[SeenBroker]) -> str:
    return "the one broker answers" if len(brokers) == 1 else f"all {len(brokers)} brokers answer"


def _addresses(brokers: list[SeenBroker]) -> str:
    return some([broker.address or "?" for broker in brokers])


def _unreachable(seen: Examination, broker: SeenBroker) -> Iterator[Finding]:
    name = f"broker {broker.id}"
    if broker.fault is not None:
        step = f"see that the broker runs and that this machine reaches {broker.address}"
        if _advertises_loopback(broker.address) and not _all_loopback(seen.bootstrap):
            step = (
                "it advertises an address of its own machine: set advertised.listeners of the broker "
                "('tidelog up --advertise HOST:PORT') to one that clients reach"
            )
        elif "unknown host" in broker.fault:
            step = "advertise a name that clients can resolve (advertised.listeners), or add it to DNS"
        message = f"{name} advertises {broker.address}, where it cannot be reached: {broker.fault}"
        yield problem("reachability", message, step, name)
    elif broker.cluster_id not in (None, seen.cluster_id):
        yield problem(
            "reachability",
            f"{name} advertises {broker.address}, where another cluster answers ({broker.cluster_id})",
            "two clusters share an address: correct advertised.listeners of one of them",
            name,
        )
    elif not broker.itself:
        yield problem(
            "reachability",
            f"{name} advertises {broker.address}, where another broker answers",
            "two brokers advertise the same address: correct advertised.listeners of one of them",
            name,
        )


def _advertises_loopback(address: str | None) -> bool:
    host = (address or "").rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _all_loopback(bootstrap: str) -> bool:
    return all(_advertises_loopback(part.strip()) for part in bootstrap.split(","))


def brokers(seen: Examination) -> list[Finding]:
    """No broker that holds replicas is dead."""
    dead = [broker for broker in seen.brokers if not broker.alive]
    if not dead:
        return [ok("brokers", f"{counted(len(seen.alive), 'broker')}, none known to be dead")]
    found = []
    for broker in dead:
        held = sum(broker.id in partition.replicas for partition in seen.partitions)
        message = f"broker {broker.id} is dead; {counted(held, 'replica')} should be there"
        step = f"start it again; if it is gone for good: tidelog cluster decommission {broker.id} --execute"
        if broker.answers:
            message = (
                f"broker {broker.id} runs and answers at {broker.address}, but is out of the cluster;"
                f" {counted(held, 'replica')} should be there"
            )
            step = (
                "look into its log: a disk that does not answer (tidelog_disk_silent_seconds), or a"
                " coordination store that it cannot reach"
            )
        elif broker.listens:
            message = (
                f"broker {broker.id} hangs: it takes connections at {broker.address} and answers none;"
                f" {counted(held, 'replica')} should be there"
            )
            step = (
                "its log says where its event loop stands; if it says nothing, the process may be stopped"
                " ('ps -o stat' shows T, 'kill -CONT' lets it go on); see to its disk and its memory, then"
                " restart it"
            )
        found.append(problem("brokers", message, step, f"broker {broker.id}"))
    return found


def controller(seen: Examination) -> list[Finding]:
    """Somebody is the controller; Apache Kafka names any broker that forwards to it."""
    if seen.controller is None:
        return [
            problem(
                "controller",
                "the cluster has no controller: topics, settings and leaders cannot change",
                "see that the coordination store (or the controllers' quorum) runs, and look at brokers'"
                " logs",
            )
        ]
    return [ok("controller", f"broker {seen.controller} answers for the controller")]


def partitions(seen: Examination) -> list[Finding]:
    """Every partition has a leader, enough replicas in sync for acks=all, and all of them."""
    offline = [partition for partition in seen.partitions if partition.leader < 0]
    required = {topic.name: topic.min_insync_replicas for topic in seen.topics}
    refusing = [
        partition
        for partition in seen.partitions
        if partition.leader >= 0 and len(partition.isr) < (required[partition.topic] or 1)
    ]
    behind = [
        partition
        for partition in seen.partitions
        if partition.leader >= 0
        and partition not in refusing
        and not set(partition.replicas) <= set(partition.isr)
    ]
    found = []
    if offline:
        names = [partition.name for partition in offline]
        found.append(
            problem(
                "partitions",
                f"{counted(len(offline), 'partition')} without a leader, neither read nor written:"
                f" {some(names)}",
                _to_lead_again(offline, {broker.id for broker in seen.alive}),
                *names,
            )
        )
    if refusing:
        names = [partition.name for partition in refusing]
        found.append(
            problem(
                "partitions",
                f"{counted(len(refusing), 'partition')} with fewer replicas in sync than min.insync.replicas,"
                f" so that writes with acks=all are refused: {some(names)}",
                f"bring back the replicas that are missing: {_missing(refusing)}",
                *names,
            )
        )
    if behind:
        names = [partition.name for partition in behind]
        found.append(
            warning(
                "partitions",
                f"{counted(len(behind), 'partition')} with replicas that are not in sync: {some(names)}",
                f"see what keeps {_missing(behind)} behind (dead, slow, cut off, a log directory that is"
                " offline): tidelog cluster status",
                *names,
            )
        )
    if not found:
        found.append(
            ok(
                "partitions",
                f"{counted(len(seen.partitions), 'partition')}, all led and all replicas in sync",
            )
        )
    return found


def _to_lead_again(offline: list[SeenPartition], alive: set[int]) -> str:
    """What brings leaders back: brokers that are away, directories of brokers that are there, an election."""
    awaited, without = awaited_by(offline, alive), without_directory_by(offline, alive)
    steps = []
    if awaited or not without:
        missing = _named(awaited) if awaited else _missing(offline)
        steps.append(f"start the brokers that hold their replicas: {missing}")
    if without:
        steps.append(
            f"mount the log directory that is not there on {_named(without)}, and restart it; if the"
            " directory is lost for good restart with its id in tidelog.lost.directories"
        )
    return (
        f"{'; '.join(steps)}; only if those are lost for good: tidelog cluster elect --unclean"
        f" {_election_of(offline)}, which takes the longest log there is, and begins an empty one where there"
        " is none"
    )


def _election_of(offline: list[SeenPartition]) -> str:
    """The partitions as 'tidelog cluster elect' takes them; the first topics of many."""
    numbers: dict[str, list[int]] = {}
    for partition in offline:
        numbers.setdefault(partition.topic, []).append(partition.partition)
    named = [f"{topic}:{','.join(map(str, indexes))}" for topic, indexes in numbers.items()]
    return " ".join(named[:ELECTED_TOPICS_MAX]) + (" …" if len(named) > ELECTED_TOPICS_MAX else "")


def _missing(behind: list[SeenPartition]) -> str:
    absent = {broker for partition in behind for broker in partition.replicas if broker not in partition.isr}
    return _named(absent)


def _named(brokers: set[int]) -> str:
    return (
        "broker" + ("s " if len(brokers) > 1 else " ") + ", ".join(str(number) for number in sorted(brokers))
    )


def leaders(seen: Examination) -> list[Finding]:
    """Leadership is where it was planned to be, and spread evenly."""
    led = [partition for partition in seen.partitions if partition.leader >= 0 and partition.replicas]
    if len(seen.alive) < 2 or not led:
        return []
    found = []
    alive = {broker.id for broker in seen.alive}
    elsewhere = [
        partition
        for partition in led
        if partition.leader != partition.replicas[0] and partition.replicas[0] in partition.isr
    ]
    if elsewhere:
        percent = 100 * len(elsewhere) / len(led)
        make = warning if percent > LEADER_IMBALANCE_PERCENT else hint
        found.append(
            make(
                "leaders",
                f"{counted(len(elsewhere), 'partition')} of {len(led)} not led by the preferred replica,"
                " though"
                " it is in sync",
                "the cluster mends that by itself every five minutes (auto.leader.rebalance.enable); at"
                " once: "
                "tidelog cluster elect",
                *(partition.name for partition in elsewhere),
            )
        )
    counts = {broker: sum(partition.leader == broker for partition in led) for broker in alive}
    mean = len(led) / len(alive)
    heavy = [broker for broker, count in counts.items() if count > 1.5 * mean]
    if heavy and len(led) >= LEADERS_WORTH_COMPARING and not elsewhere:
        shares = ", ".join(f"broker {broker} leads {counts[broker]}" for broker in sorted(counts))
        found.append(
            hint(
                "leaders",
                f"leaders are spread unevenly: {shares}",
                "tidelog cluster reassign --all-topics shows a balanced plan",
                *(f"broker {broker}" for broker in heavy),
            )
        )
    return found or [ok("leaders", "leaders are on their preferred replicas and spread evenly")]


def replication(seen: Examination) -> list[Finding]:
    """Topics survive the loss of a broker, and can still be written then."""
    own = [topic for topic in seen.topics if not topic.internal and topic.partitions]
    if not own:
        return [ok("replication", "there are no topics yet")]
    found: list[Finding] = []
    if len(seen.brokers) == 1:
        found.append(
            hint(
                "replication",
                "there is one broker: nothing is served while it is away, and its disk is the only copy",
                "right for development; for more run three: tidelog up --brokers 3",
            )
        )
    else:
        found += _too_few_replicas(seen, own)
    found += _min_insync(own, seen)
    if not found:
        found.append(ok("replication", f"{counted(len(own), 'topic')} with enough replicas"))
    return found


def _too_few_replicas(seen: Examination, own: list[SeenTopic]) -> list[Finding]:
    wanted = min(REPLICAS_WANTED, len(seen.brokers))
    single = [topic.name for topic in own if topic.replication_factor == 1]
    few = [topic.name for topic in own if 1 < topic.replication_factor < wanted]
    step = f"tidelog cluster reassign --topic NAME --replication-factor {wanted} --execute"
    found = []
    if single:
        found.append(
            warning(
                "replication",
                f"{counted(len(single), 'topic')} with one replica, lost with its broker: {some(single)}",
                step,
                *single,
            )
        )
    if few:
        message = f"{counted(len(few), 'topic')} with fewer than {wanted} replicas: {some(few)}"
        found.append(hint("replication", message, step, *few))
    return found


def _min_insync(own: list[SeenTopic], seen: Examination) -> list[Finding]:
    several = [topic for topic in own if topic.replication_factor > 1 or (topic.min_insync_replicas or 1) > 1]
    impossible, brittle, weak = [], [], []
    for topic in several:
        minimum, replicas = topic.min_insync_replicas, topic.replication_factor
        if minimum is None:
            continue
        if minimum > replicas:
            impossible.append(topic.name)
        elif minimum == replicas:
            brittle.append(topic.name)
        elif minimum == 1 and replicas >= REPLICAS_WANTED:
            weak.append(topic.name)
    found = []
    if impossible:
        found.append(
            problem(
                "replication",
                "min.insync.replicas is larger than the number of replicas, so that no write with acks=all"
                " can"
                f" ever succeed: {some(impossible)}",
                f"tidelog config set topic {impossible[0]} min.insync.replicas=1, or add replicas",
                *impossible,
            )
        )
    if brittle:
        found.append(
            warning(
                "replication",
                "min.insync.replicas equals the number of replicas, so that writes with acks=all stop as"
                " soon as"
                f" one broker is away (at every restart): {some(brittle)}",
                f"one less is what is usually meant: tidelog config set topic {brittle[0]}"
                " min.insync.replicas="
                f"{_replicas_of(seen, brittle[0]) - 1}",
                *brittle,
            )
        )
    if weak:
        found.append(
            hint(
                "replication",
                "min.insync.replicas is 1, so that acks=all may mean the leader alone, and its loss loses"
                " what"
                f" was acknowledged: {some(weak)}",
                f"tidelog config set topic {weak[0]} min.insync.replicas=2",
                *weak,
            )
        )
    return found


def _replicas_of(seen: Examination, name: str) -> int:
    return next(topic.replication_factor for topic in seen.topics if topic.name == name)


def groups(seen: Examination) -> list[Finding]:
    """Groups read, are not stuck, and have lost nothing to retention."""
    # Those of leaders that forward delayed records have no members: what waits for them is to wait.
    readers = [group for group in seen.groups if not group.id.startswith(DELAY_GROUP_PREFIX)]
    if not readers:
        return []
    found = [finding for group in readers for finding in _group(seen, group)]
    return found or [ok("groups", f"{counted(len(readers), 'group')}, none behind or stuck")]


def _group(seen: Examination, group: SeenGroup) -> Iterator[Finding]:
    name = f"group {group.id}"
    lost = sum(max(0, log.start - committed) for log, committed in _logs_of(seen, group))
    lag = sum(max(0, log.end - max(committed, log.start)) for log, committed in _logs_of(seen, group))
    if lost:
        yield warning(
            "groups",
            f"{name} did not read {counted(lost, 'record')} before retention deleted them",
            "give its topics a longer retention.ms, and see why the group is slow",
            group.id,
        )
    if group.state in REBALANCING:
        if group.state_later in REBALANCING:
            yield problem(
                "groups",
                f"{name} is rebalancing ({group.state}) and still was after {seen.watched_seconds:.0f} s:"
                " nobody"
                " reads meanwhile",
                "a member does not poll, or members come and go: look at max.poll.interval.ms and their logs;"
                f" tidelog group describe {group.id}",
                group.id,
            )
    elif lag and group.members:
        yield from _busy(seen, group, lag)
    elif lag and group.kind != "share":
        big = lag >= LAG_BIG_RECORDS
        make = warning if big else hint
        yield make(
            "groups",
            f"{name} has no members, and {counted(lag, 'record')} wait for it",
            f"start its consumers; if it is no longer used: tidelog group delete {group.id}",
            group.id,
        )


def _busy(seen: Examination, group: SeenGroup, lag: int) -> Iterator[Finding]:
    step = f"tidelog group describe {group.id} names the member of each partition; look at its log"
    still = group.committed_later is not None and not any(
        group.committed_later.get(partition, -1) > offset
        for partition, offset in _every_commit(group).items()
    )
    if still:
        yield warning(
            "groups",
            f"group {group.id} has {counted(group.members, 'member')} but committed nothing in"
            f" {seen.watched_seconds:.0f} s, while {counted(lag, 'record')} wait",
            f"its consumers are paused, stuck or too slow: {step}",
            group.id,
        )
    elif lag >= LAG_BIG_RECORDS:
        yield hint(
            "groups",
            f"group {group.id} moves, but is {counted(lag, 'record')} behind",
            "add members (up to one for each partition) or make them faster",
            group.id,
        )


def _every_commit(group: SeenGroup) -> dict[tuple[str, int], int]:
    """What it had committed, and what it committed for the first time since."""
    return {**dict.fromkeys(group.committed_later or {}, -1), **group.committed}


def _logs_of(seen: Examination, group: SeenGroup) -> Iterator[tuple[LogRange, int]]:
    for partition, committed in group.committed.items():
        log = seen.logs.get(partition)
        if log is not None:
            yield log, committed


def transactions(seen: Examination) -> list[Finding]:
    """No transaction is open that its coordinator does not know, or longer than it may be."""
    known = {
        (transaction.producer_id, name)
        for transaction in seen.transactions
        for name in transaction.partitions
    }
    found = []
    for hanging in seen.open_producers:
        place = f"{hanging.topic}-{hanging.partition}"
        if (hanging.producer_id, place) in known:
            continue
        log = seen.logs.get((hanging.topic, hanging.partition))
        held = f", {counted(log.end - hanging.start_offset, 'record')}" if log is not None else ""
        found.append(
            problem(
                "transactions",
                f"a transaction of producer {hanging.producer_id} hangs in {place}: no coordinator knows"
                " it, and"
                f" read_committed consumers get nothing from offset {hanging.start_offset} on{held}",
                f"tidelog txn abort {hanging.topic} {hanging.partition} --start-offset"
                f" {hanging.start_offset}",
                place,
            )
        )
    for transaction in seen.transactions:
        age_ms = seen.now_ms - transaction.start_ms if transaction.start_ms is not None else 0
        timeout_ms = transaction.timeout_ms or 0
        if age_ms > timeout_ms + TRANSACTION_MARGIN_MS:
            found.append(
                warning(
                    "transactions",
                    f"transaction {transaction.transactional_id} is {transaction.state} for"
                    f" {age_ms // 1000} s,"
                    f" longer than its timeout of {timeout_ms // 1000} s",
                    "its coordinator should have aborted it: see the log of that broker, and"
                    f" tidelog txn describe {transaction.transactional_id}",
                    transaction.transactional_id,
                )
            )
    return found or [ok("transactions", f"{counted(len(seen.transactions), 'transaction')} open, none hangs")]


def background(seen: Examination) -> list[Finding]:
    """What brokers do by themselves (compaction, retention, checkpoints) goes well, for every log."""
    told = seen.background
    found = []
    for job in told.jobs:
        if job.failed_in_a_row:
            times = counted(job.failed_in_a_row, "time")
            found.append(
                problem(
                    "background",
                    f"{job.name} fails on broker {job.broker} ({times} in a row,"
                    f" for {job.seconds_since_last_run:.0f} s): {job.fault}",
                    "it is tried again by itself; the log of the broker has the whole story",
                    f"broker {job.broker}",
                    job.name,
                )
            )
    for broker, count in told.uncleanable_counts.items():
        if count:
            logs = [each for each in told.uncleanable if each.broker == broker]
            reason = logs[0].reason if logs else ""
            found.append(
                warning(
                    "background",
                    f"broker {broker} cannot compact {counted(count, 'log')}, and what is superseded stays:"
                    f" {some([each.partition for each in logs])} ({reason})",
                    "where the log is damaged and other replicas are well: move the replica away and back"
                    " ('tidelog cluster reassign'), so that it is copied again",
                    *(each.partition for each in logs),
                )
            )
    for broker, count in told.unexpected_errors.items():
        if count:
            found.append(
                warning(
                    "background",
                    f"broker {broker} met {counted(count, 'error')} in its own code that nobody expected",
                    "its log has the tracebacks; please report them",
                    f"broker {broker}",
                )
            )
    if not told.jobs:
        return found
    return found or [ok("background", "compaction, retention and the other background jobs go well")]


def clocks(seen: Examination) -> list[Finding]:
    """Clocks agree, as far as a client sees them: the controller's, and timestamps of records."""
    found = []
    if seen.controller_clock_ms is not None:
        before, told, after = seen.controller_clock_ms
        skew = max(before - told, told - after, 0)
        if skew > CLOCK_SKEW_WARNING_MS:
            way = "ahead of" if told > after else "behind"
            found.append(
                warning(
                    "clocks",
                    f"the controller's clock is {skew / 1000:.0f} s {way} that of this machine",
                    "run a time service (chrony, systemd-timesyncd) on both",
                )
            )
    future = [
        f"{topic}-{partition}"
        for (topic, partition), log in seen.logs.items()
        if log.newest_timestamp_ms > seen.now_ms + FUTURE_RECORDS_MS
    ]
    if future:
        found.append(
            warning(
                "clocks",
                f"records bear times in the future, which keeps retention from deleting them: {some(future)}",
                "correct the clocks of the producers; message.timestamp.after.max.ms refuses such records",
                *future,
            )
        )
    if not found and (seen.controller_clock_ms is not None or seen.logs):
        found.append(ok("clocks", "no clock is seen to be wrong"))
    return found


def versions(seen: Examination) -> list[Finding]:
    """All brokers speak the same versions of the protocol, and ones that clients of today need."""
    told = {broker.id: broker.versions for broker in seen.alive if broker.versions}
    if not told:
        return []
    found = []
    ancient = [
        f"broker {number}"
        for number, apis in told.items()
        if apis.get(FETCH, (0, 0))[1] < FETCH_OF_KAFKA_0_11
    ]
    if ancient:
        found.append(
            warning(
                "versions",
                f"{some(ancient)} speaks the protocol of Kafka 0.10: no headers, idempotence or transactions",
                "upgrade the broker",
                *ancient,
            )
        )
    newest = max(told.values(), key=lambda apis: (len(apis), sum(high for _, high in apis.values())))
    older = [f"broker {number}" for number, apis in told.items() if apis != newest]
    if older:
        found.append(
            hint(
                "versions",
                f"brokers speak different versions of the protocol; {some(older)} is older than the others",
                "finish the rolling upgrade",
                *older,
            )
        )
    if not found:
        fetch, produce = newest.get(FETCH, (0, 0)), newest.get(PRODUCE, (0, 0))
        text = f"Fetch {fetch[0]} to {fetch[1]}, Produce {produce[0]} to {produce[1]}"
        found.append(ok("versions", f"every broker speaks {text}; {len(newest)} APIs"))
    return found


def settings(seen: Examination) -> list[Finding]:
    """Settings that all brokers should share are the same everywhere, and safe."""
    told = [broker for broker in seen.alive if broker.configs]
    if not told:
        return []
    found = []
    for name in SHARED_SETTINGS:
        values = {broker.configs[name] for broker in told if name in broker.configs}
        if len(values) > 1:
            each = ", ".join(f"broker {broker.id}: {broker.configs.get(name)}" for broker in told)
            found.append(
                warning(
                    "settings",
                    f"{name} differs between brokers ({each}), so that it matters which one creates or leads",
                    "give all brokers the same value in their configuration, or set it for the whole cluster",
                    name,
                )
            )
    unclean = [
        topic.name for topic in seen.topics if topic.configs.get("unclean.leader.election.enable") == "true"
    ]
    if unclean:
        found.append(
            warning(
                "settings",
                "unclean.leader.election.enable is on: a replica that was not in sync may lead, and"
                " acknowledged"
                f" records are lost: {some(unclean)}",
                f"tidelog config set topic {unclean[0]} unclean.leader.election.enable=false",
                *unclean,
            )
        )
    return found or [ok("settings", "brokers agree on the settings that they should share")]


SHARED_SETTINGS = (
    "default.replication.factor",
    "min.insync.replicas",
    "num.partitions",
    "auto.create.topics.enable",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "share.coordinator.state.topic.replication.factor",
    "unclean.leader.election.enable",
    "message.max.bytes",
)


def certificates(seen: Examination) -> list[Finding]:
    """Certificates are good for a while, where TLS is spoken."""
    if not seen.encrypted:
        return []
    told = [broker for broker in seen.alive if broker.certificate_expires_at is not None]
    found = []
    for broker in told:
        assert broker.certificate_expires_at is not None
        days = (broker.certificate_expires_at - seen.now_ms / 1000) / DAY_SECONDS
        if days < CERTIFICATE_WARNING_DAYS:
            make = problem if days < CERTIFICATE_PROBLEM_DAYS else warning
            state = f"ends in {days:.0f} days" if days >= 0 else f"ended {-days:.0f} days ago"
            found.append(
                make(
                    "certificates",
                    f"the certificate of broker {broker.id} {state}",
                    "issue another one and put it in ssl.keystore.location of the broker, before clients"
                    " refuse it",
                    f"broker {broker.id}",
                )
            )
    if not found and told:
        first = min(broker.certificate_expires_at or 0.0 for broker in told)
        days = (first - seen.now_ms / 1000) / DAY_SECONDS
        found.append(ok("certificates", f"certificates are good for {days:.0f} days or more"))
    return found


def unseen(seen: Examination) -> list[Finding]:
    """What was not asked, so that nobody takes silence for health."""
    return [
        hint("not seen", text, "with the rights of an administrator, or a newer broker, more can be seen")
        for text in seen.unseen
    ]


#: in the order of the report
CHECKS: tuple[Check, ...] = (
    reachability,
    brokers,
    controller,
    partitions,
    leaders,
    replication,
    internal_topics,
    settings,
    groups,
    share_groups,
    transactions,
    disks,
    cuts,
    background,
    clocks,
    versions,
    certificates,
    unseen,
)


def diagnose(seen: Examination) -> list[Finding]:
    """Everything that the checks say, in their order."""
    return [finding for check in CHECKS for finding in check(seen)]
