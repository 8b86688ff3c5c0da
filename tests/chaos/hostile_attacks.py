"""Single attacks, each of which once stopped a broker or filled its memory; all but the last without rights.

`hostile_attacks.py` prints what each does; `--source PATH` runs them against another version of the package.

    expression        one ListTransactions of 20 KB froze the broker for seven seconds and took 230 MB
    names             eight requests with long names made the authorizer keep 162 MiB, and the log grow
    sessions          eight Fetch requests of partitions that do not exist made sessions keep 330 MiB
    members           who may join a group had it keep 640 MiB, eight members with metadata of 80 MB
    group id          a group with a name of 40,000 characters made ListGroups fail for everybody
"""

import argparse
import contextlib
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.chaos.hostile_broker import MIB, HostileBroker, Probe, Seen, receive
from tests.chaos.hostile_user import CONNECTIONS, KEPT_MIB_MAX, METADATA_MS_MAX, await_calm
from tests.chaos.kafka_wire import WireClient, frame, request_frame
from tidelog.protocol.primitives import unsigned_varint

FETCH = 1
MEMBER_METADATA_BYTES = 80 << 20
NAME = "n" * 32_000


class Result(NamedTuple):
    """What an attack did."""

    seen: Seen
    kept_mib: float
    peak_mib: float
    log_kib: float

    def __str__(self) -> str:
        return (
            f"Metadata {self.seen.worst_ms:.0f} ms ({self.seen.worst_cpu_ms:.0f} ms CPU), "
            f"kept {self.kept_mib:.1f} MiB ({self.peak_mib:.0f} at most), {self.log_kib:.0f} KiB logged"
        )


def expression() -> list[bytes]:
    pattern = "[" + "a" * 19_990 + "]{100}"
    fields = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
    return [request_frame("list_transactions", 2, 7, {**fields, "transactional_id_pattern": pattern})]


def names() -> list[bytes]:
    requests = []
    for number in range(CONNECTIONS):
        groups = [f"{number}-{index:04d}-{NAME}" for index in range(600)]
        fields = {"groups": groups, "include_authorized_operations": False}
        requests.append(request_frame("describe_groups", 5, 7, fields))
    return requests


def sessions() -> list[bytes]:
    """Fetch v13 that opens a session of partitions of topics that do not exist."""
    requests = []
    for number in range(CONNECTIONS):
        topics = b"".join(
            struct.pack(">QQ", number + 1, index)
            + unsigned_varint(101)
            + b"".join(struct.pack(">iiqiqi", part, -1, 0, -1, -1, 1 << 20) + b"\0" for part in range(100))
            + b"\0"
            for index in range(490)
        )
        body = struct.pack(">iiiibii", -1, 0, 1, 1 << 20, 0, 0, 0) + unsigned_varint(491) + topics
        requests.append(frame(FETCH, 13, 7, body + b"\x01\x01\0", flexible=True))
    return requests


def members() -> list[bytes]:
    """JoinGroup v3, which needs no member id, of groups that are waiting for more members."""
    requests = []
    for number in range(CONNECTIONS):
        fields = {
            "group_id": f"g{number}",
            "session_timeout": 1_800_000,
            "rebalance_timeout": 1_800_000,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": bytes(MEMBER_METADATA_BYTES)}],
        }
        requests.append(request_frame("join_group", 3, 7, fields))
    return requests


ATTACKS: dict[str, Callable[[], list[bytes]]] = {
    "expression": expression,
    "names": names,
    "sessions": sessions,
    "members": members,
}
#: for these one must have the right to join groups
WITH_RIGHTS = frozenset({"members"})
#: what attacks with rights may make the broker keep, beyond what a setting says
KEPT_MIB_MAX_WITH_RIGHTS = 128 + KEPT_MIB_MAX


def kept_mib_max(name: str) -> int:
    return KEPT_MIB_MAX_WITH_RIGHTS if name in WITH_RIGHTS else KEPT_MIB_MAX


def _send(broker: HostileBroker, data: bytes, has_rights: bool) -> None:
    connected = broker.connect_inside() if has_rights else broker.connect(authenticated=True)
    with contextlib.suppress(OSError), connected as stream:
        stream.sendall(data)
        receive(stream)


def attack(broker: HostileBroker, probe: Probe, name: str) -> Result:
    """Send all at once, each on its connection; what came of it when they were answered and gone."""
    frames = ATTACKS[name]()
    probe.seen()
    before, log_before = broker.resident_bytes(), broker.log_path.stat().st_size
    has_rights = name in WITH_RIGHTS
    threads = [
        threading.Thread(target=_send, args=(broker, data, has_rights), daemon=True) for data in frames
    ]
    for thread in threads:
        thread.start()
    peak = before
    while any(thread.is_alive() for thread in threads):
        peak = max(peak, broker.resident_bytes())
        time.sleep(0.01)
    await_calm(broker, before + 8 * MIB)
    return Result(
        probe.seen(),
        (broker.resident_bytes() - before) / MIB,
        (peak - before) / MIB,
        (broker.log_path.stat().st_size - log_before) / 1024,
    )


def long_group_id(broker: HostileBroker) -> str:
    """Have somebody with rights join a group whose name is too long; what ListGroups says afterwards."""
    fields = {
        "group_id": "g" * 40_000,
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": "",
        "group_instance_id": "i",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    address = f"127.0.0.1:{broker.ports['INSIDE']}"
    with WireClient(address) as client, contextlib.suppress(Exception):
        client.exchange(request_frame("join_group", 9, 7, fields))
    try:
        with WireClient(address) as client:
            listed = client.ask("list_groups", 2)
    except Exception as fault:
        return f"ListGroups fails: {fault!r}"
    return f"ListGroups answers {int(listed.error_code)}, {len(listed.groups)} groups"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--source")
    arguments = parser.parse_args()
    broken = 0
    for name in ATTACKS:
        with (
            tempfile.TemporaryDirectory(prefix="tidelog-hostile-") as folder,
            HostileBroker(Path(folder), 100 << 20, arguments.source) as broker,
            Probe(broker) as probe,
        ):
            # What is imported once is there before anything is measured.
            _send(broker, request_frame("list_transactions", 2, 7, _FILTERS), False)
            result = attack(broker, probe, name)
            held = result.seen.worst_ms <= METADATA_MS_MAX and result.kept_mib <= kept_mib_max(name)
            broken += not held
            print(f"{'ok    ' if held else 'FAILED'} {name}: {result}", flush=True)
            if name == "expression":
                print(f"       group id: {long_group_id(broker)}", flush=True)
    return 1 if broken else 0


_FILTERS = {
    "state_filters": [],
    "producer_id_filters": [],
    "duration_filter": -1,
    "transactional_id_pattern": None,
}


if __name__ == "__main__":
    sys.exit(main())
