"""The checks of `tidelog doctor` about log directories and replicas that do not follow their leader."""

from collections.abc import Sequence

from tidelog.admin.diagnosis import (
    Examination,
    Finding,
    SeenRefusedCut,
    counted,
    ok,
    problem,
    some,
    warning,
)
from tidelog.admin.sizes import bytes_text

DISK_WARNING_PERCENT = 15
DISK_PROBLEM_PERCENT = 5
MEND = (
    "mend the disk, or mount it, and restart the broker. If it is lost for good, put an empty one in its"
    " place and restart the broker with tidelog.lost.directories, whose value the log of the broker tells:"
    " its replicas are then copied from other brokers"
)


def disks(seen: Examination) -> list[Finding]:
    """Every log dir is online and has room."""
    found = []
    alive = {broker.id for broker in seen.alive}
    failed = [
        f"{partition.name} on broker {broker}"
        for partition in seen.partitions
        for broker in partition.offline_replicas
        if broker in alive
    ]
    if failed:
        found.append(
            problem(
                "disks",
                f"{counted(len(failed), 'replica')} offline though the broker lives, since the log directory"
                f" is not there or has failed: {some(failed)}",
                MEND,
                *failed,
            )
        )
    for folder in seen.log_dirs:
        name = f"{folder.path} of broker {folder.broker}"
        if folder.error:
            reason = seen.background.offline_directories.get((folder.broker, folder.path), folder.error)
            found.append(problem("disks", f"{name} is offline: {reason}", MEND, name))
        elif folder.total_bytes > 0:
            percent = 100 * folder.usable_bytes / folder.total_bytes
            if percent < DISK_WARNING_PERCENT:
                make = problem if percent < DISK_PROBLEM_PERCENT else warning
                found.append(
                    make(
                        "disks",
                        f"{name} has {percent:.0f} % left ({bytes_text(folder.usable_bytes)} of"
                        f" {bytes_text(folder.total_bytes)})",
                        "shorten retention.ms or retention.bytes of the largest topics, or add disk: a broker"
                        " without room stops taking records",
                        name,
                    )
                )
    if not found and not seen.log_dirs:
        return []
    return found or [ok("disks", f"{counted(len(seen.log_dirs), 'log dir')}, online and with room")]


def cuts(seen: Examination) -> list[Finding]:
    """No follower would lose committed records by following its leader."""
    refused = seen.background.refused_cuts
    return [
        problem(
            "committed records",
            f"broker {cut.broker} does not follow {cut.partition}: its leader, broker {cut.leader}, lacks the"
            f" committed records {cut.offset} to {cut.high_watermark - 1} though it was elected cleanly",
            f"to keep them: stop {_followers(cut, refused, seen)}, then 'tidelog cluster elect --unclean' for"
            " the partition, and start them again when it is led: of what is alive the newest log is elected,"
            " so nobody may be there that follows this leader. To give the records up: take the replica away"
            f" from broker {cut.broker} and give it back ('tidelog cluster reassign')",
            cut.partition,
        )
        for cut in refused
    ]


def _followers(cut: SeenRefusedCut, refused: Sequence[SeenRefusedCut], seen: Examination) -> str:
    """The brokers whose logs are as their leader's, the leader first: all but those that refuse to follow."""
    steadfast = {other.broker for other in refused if other.partition == cut.partition}
    replicas = next((each.replicas for each in seen.partitions if each.name == cut.partition), ())
    others = [broker for broker in replicas if broker not in steadfast and broker != cut.leader]
    names = [str(broker) for broker in (cut.leader, *others)]
    return f"broker {names[0]}" if not others else f"the brokers {', '.join(names[:-1])} and {names[-1]}"
