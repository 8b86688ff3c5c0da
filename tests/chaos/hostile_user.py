"""A user without rights sends every API the largest legal and illegal requests.

`hostile_user.py` prints for each API and version how long another client waited for Metadata, what the broker
computed and what it kept, and ends with exit code 0 if all of it is below the bounds (docs/security.md).
`--api NAME` chooses, `--source PATH` attacks another version of the package, `--quick` is smaller.

The requests come from the table of APIs and from the schemas, so a new API is attacked without a line here.
Eight connections send them, each beginning with another kind: see `KINDS`.
"""

import argparse
import contextlib
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.chaos.hostile_broker import EXISTING, MIB, HostileBroker, Probe, Seen, receive
from tests.chaos.kafka_wire import frame
from tests.support.largest_requests import KIO_VERSION_MAX, LargestRequest
from tidelog.protocol.apis import APIS, FETCH, PRODUCE, Api, Stage
from tidelog.protocol.primitives import PARTITIONS_MAX, PRODUCED_PARTITIONS_MAX, STRING_BYTES_MAX

#: the bounds that docs/security.md states
METADATA_MS_MAX = 250
KEPT_MIB_MAX = 32
CONNECTIONS = 8
#: after the connections are gone
CALM_SECONDS_MAX = 5.0
ELEMENTS_MAX = 50_000
#: takes an engine for regular expressions as long as any of its length
EXPRESSION = b"(x{0,99}){0,9}|" * 60
#: frames before a login
UNAUTHENTICATED_BYTES_MAX = 512 << 10


@dataclass(frozen=True)
class Scale:
    """How large an attack is."""

    frame_bytes_max: int
    elements_max: int
    partitions_max: int
    #: how many kinds of requests each connection sends
    kinds: int
    pipelined: int


FULL = Scale(100 << 20, ELEMENTS_MAX, PARTITIONS_MAX, 3, 2_000)
QUICK = Scale(1 << 20, 12_000, 12_000, 1, 20)


class Requests:
    """The requests of one API and version, kind by kind."""

    def __init__(self, api: Api, version: int, scale: Scale, frame_bytes_max: int) -> None:
        self.api, self.version, self._scale = api, version, scale
        self._room = frame_bytes_max - 64
        self._flexible = api.flexible(version)
        limits = {PRODUCE: PRODUCED_PARTITIONS_MAX, FETCH: PARTITIONS_MAX}
        self._elements_limit = limits.get(api.key, ELEMENTS_MAX)
        wanted = scale.partitions_max if api.key in limits else scale.elements_max
        self._elements_max = min(wanted, self._elements_limit)

    def _body(self, text: bytes = b"", **sizes: int) -> LargestRequest:
        return LargestRequest(self.api.module, self.version, text=text, **sizes)

    def _frame(self, body: bytes) -> bytes:
        return frame(self.api.key, self.version, 7, body, flexible=self._flexible)

    def _fitting(self, elements_max: int, name: str = "elements", text: bytes = b"", **sizes: int) -> bytes:
        """The request with as many elements as the broker takes and a frame holds."""

        def made(count: int) -> tuple[bytes, int]:
            body = self._body(text, **{name: count}, **sizes)
            return body.encode(), body.element_count

        def fits(count: int) -> bool:
            data, elements = made(count)
            return elements <= elements_max and len(data) <= self._room

        (one, ones), (two, twos), (_, threes) = made(1), made(2), made(3)
        if twos == ones:
            return one
        if threes - twos == twos - ones:
            count = (elements_max - ones) // (twos - ones)
            count = min(count, (self._room - len(one)) // max(len(two) - len(one), 1))
            return made(max(1, count + 1))[0] if count > 0 else one
        # Arrays within arrays: twice as many are eight times as many where there are three.
        low, high = 1, 2
        while fits(high):
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return made(low)[0]

    def small(self) -> bytes:
        return self._frame(self._body().encode())

    def most_elements(self) -> bytes:
        return self._frame(self._fitting(self._elements_max))

    def most_inner_elements(self) -> bytes:
        return self._frame(self._fitting(self._elements_max, "inner_elements"))

    def existing_names(self) -> bytes:
        """The name of a topic that is there, in every place, again and again."""
        return self._frame(self._fitting(self._elements_max, text=EXISTING.encode()))

    def longest_names(self) -> bytes:
        return self._frame(self._fitting(self._elements_max, strings=STRING_BYTES_MAX))

    def most_tags(self) -> bytes:
        return self._frame(self._fitting(self._elements_max, tags=1_000 if self._flexible else 0))

    def largest_blob(self) -> bytes:
        one = self._body()
        base = len(one.encode())
        return self._frame(self._body(blobs=max(0, self._room - base - 64) if one.has_blobs else 0).encode())

    def too_many_elements(self) -> bytes:
        return self._frame(self._fitting(self._elements_limit * 2, strings=1))

    def too_long_string(self) -> bytes:
        return self._frame(self._body(long_string=0, elements=1_000).encode())

    def announced_elements(self) -> bytes:
        """Zeros and ones after the small beginning: lengths that are lies, up to the largest frame."""
        body = self._body(elements=0).encode()
        return self._frame(body[: len(body) // 2] + b"\x7f\xff\xff\xff" + b"\x01" * (self._room - len(body)))

    def expressions(self) -> bytes:
        """Expressions that are costly to compile instead of names."""
        return self._frame(self._body(EXPRESSION).encode())

    def large_expressions(self) -> bytes:
        """The same above any limit."""
        return self._frame(self._body((EXPRESSION * 30)[:STRING_BYTES_MAX]).encode())

    def pipelined(self) -> bytes:
        """Many middling requests at once."""
        some = self._frame(self._fitting(min(500, self._elements_max)))
        return some * min(self._scale.pipelined, max(1, (8 * MIB) // len(some)))


Kind = Callable[[Requests], bytes]
KINDS: tuple[Kind, ...] = (
    Requests.most_elements,
    Requests.most_inner_elements,
    Requests.existing_names,
    Requests.longest_names,
    Requests.most_tags,
    Requests.largest_blob,
    Requests.too_many_elements,
    Requests.too_long_string,
    Requests.announced_elements,
    Requests.pipelined,
    Requests.expressions,
    Requests.large_expressions,
)


@dataclass(frozen=True)
class Outcome:
    """What one API and version did to the broker and to the other client."""

    what: str
    seen: Seen
    kept_mib: float
    peak_mib: float
    cpu_seconds: float
    seconds: float
    answered: int
    closed: int
    unanswered: int

    def __str__(self) -> str:
        return (
            f"{self.what:45} Metadata {self.seen.worst_ms:6.0f} ms ({self.seen.worst_cpu_ms:5.0f} ms CPU), "
            f"kept {self.kept_mib:6.1f} MiB (peak {self.peak_mib:5.0f}), {self.cpu_seconds:5.1f} s CPU in "
            f"{self.seconds:5.1f} s, {self.answered} answered, {self.closed} closed"
            + (f", {self.unanswered} UNANSWERED" if self.unanswered else "")
        )


class Who(Enum):
    """Who attacks."""

    STRANGER = ""
    NOBODY = " before login"
    SUPER_USER = " with rights"


class Attacker(threading.Thread):
    """One connection after the other, sending what it is given and reading what comes."""

    def __init__(self, broker: HostileBroker, frames: list[bytes], who: Who) -> None:
        super().__init__(daemon=True)
        self._broker, self._frames = broker, frames
        self._who = who
        self.answered = self.closed = 0
        #: what the broker neither answered nor closed the connection for
        self.unanswered = 0

    def run(self) -> None:
        for data in self._frames:
            with (
                contextlib.suppress(OSError),
                self._connected() as stream,
            ):
                self._send(stream, data)

    def _connected(self) -> socket.socket:
        if self._who is Who.SUPER_USER:
            return self._broker.connect_inside()
        return self._broker.connect(authenticated=self._who is Who.STRANGER)

    def _send(self, stream: socket.socket, data: bytes) -> None:
        # Read while it is sent: who only sends many requests waits for himself once the answers fill buffers.
        sender = threading.Thread(target=_send_all, args=(stream, data), daemon=True)
        sender.start()
        try:
            for _ in _frames(data):
                receive(stream)
                self.answered += 1
        except TimeoutError:
            self.unanswered += 1
        except ConnectionError:
            self.closed += 1


def _send_all(stream: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # whoever receives sees it too
        stream.sendall(data)


def _frames(data: bytes) -> Iterator[int]:
    position = 0
    while position < len(data):
        yield position
        position += 4 + int.from_bytes(data[position : position + 4], "big")


def cases(names: list[str] | None = None) -> list[tuple[Api, int]]:
    """Every API with its oldest and newest version."""
    found = []
    for api in APIS.values():
        if names and api.name not in names:
            continue
        oldest = max(api.min_version, api.served_from)
        newest = min(api.max_version, KIO_VERSION_MAX.get(api.name, api.max_version))
        found += [(api, version) for version in sorted({oldest, newest})]
    return found


def attackers_of(api: Api) -> list[Who]:
    """Who sends an API: what is sent before a login is sent without one too."""
    return [Who.STRANGER, Who.NOBODY] if api.stage is Stage.OPENING else [Who.STRANGER]


def attack(
    broker: HostileBroker, probe: Probe, api: Api, version: int, scale: Scale, who: Who = Who.STRANGER
) -> Outcome:
    """Have eight connections send one API everything, and see what comes of it."""
    bytes_max = UNAUTHENTICATED_BYTES_MAX if who is Who.NOBODY else scale.frame_bytes_max
    requests = Requests(api, version, scale, bytes_max)
    frames = [kind(requests) for kind in KINDS]
    # What is imported and made once is there before anything is measured.
    Attacker(broker, [requests.small()] * 3, who).run()
    probe.seen()
    before_bytes, cpu_before, begun = broker.resident_bytes(), broker.cpu_seconds(), time.monotonic()
    shares: list[list[bytes]] = [[] for _ in range(CONNECTIONS)]
    for number in range(max(len(frames), CONNECTIONS * scale.kinds)):
        shares[number % CONNECTIONS].append(frames[number % len(frames)])
    attackers = [Attacker(broker, share, who) for share in shares]
    for attacker in attackers:
        attacker.start()
    peak_bytes = before_bytes
    for attacker in attackers:
        while attacker.is_alive():
            attacker.join(0.05)
            peak_bytes = max(peak_bytes, broker.resident_bytes())
    seconds = time.monotonic() - begun
    await_calm(broker, before_bytes + KEPT_MIB_MAX // 2 * MIB)
    seen = probe.seen()
    assert broker.running, f"the broker died:\n{broker.log_text()[-4000:]}"
    assert "Traceback" not in broker.log_text(), broker.log_text()[-4000:]
    return Outcome(
        f"{api.name} v{version}{who.value}",
        seen,
        (broker.resident_bytes() - before_bytes) / MIB,
        peak_bytes / MIB,
        broker.cpu_seconds() - cpu_before,
        seconds,
        sum(attacker.answered for attacker in attackers),
        sum(attacker.closed for attacker in attackers),
        sum(attacker.unanswered for attacker in attackers),
    )


def await_calm(broker: HostileBroker, enough_bytes: int) -> None:
    """Give the broker the time that it takes to return memory."""
    deadline = time.monotonic() + CALM_SECONDS_MAX
    time.sleep(0.05)
    while broker.resident_bytes() > enough_bytes and time.monotonic() < deadline:
        time.sleep(0.1)


def faults(outcome: Outcome, *, busy: bool) -> list[str]:
    """Which bounds an outcome breaks; on a busy machine only the time counts that the broker computed."""
    waited = outcome.seen.worst_cpu_ms if busy else outcome.seen.worst_ms
    found = []
    if waited > METADATA_MS_MAX:
        found.append(f"another client waited {waited:.0f} ms for Metadata, more than {METADATA_MS_MAX}")
    if outcome.kept_mib > KEPT_MIB_MAX:
        found.append(f"{outcome.kept_mib:.0f} MiB are kept, more than {KEPT_MIB_MAX}")
    if outcome.unanswered:
        found.append(f"{outcome.unanswered} requests were neither answered nor refused")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--api", action="append")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--busy", action="store_true", help="others keep the machine busy")
    parser.add_argument("--rights", action="store_true", help="by somebody who may do everything")
    parser.add_argument("--source")
    arguments = parser.parse_args()
    scale = QUICK if arguments.quick else FULL
    broken = 0
    with (
        tempfile.TemporaryDirectory(prefix="tidelog-hostile-") as folder,
        HostileBroker(Path(folder), scale.frame_bytes_max, arguments.source) as broker,
        Probe(broker) as probe,
    ):
        for api, version in cases(arguments.api):
            for who in [Who.SUPER_USER] if arguments.rights else attackers_of(api):
                outcome = attack(broker, probe, api, version, scale, who)
                found = faults(outcome, busy=arguments.busy)
                broken += bool(found)
                print(f"{'FAILED' if found else 'ok    '} {outcome}", flush=True)
    print(f"{broken} broke a bound")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
