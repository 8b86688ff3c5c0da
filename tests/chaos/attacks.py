"""What somebody with bad intentions tries: `attacks.py [NAME…]` prints what each did; exit code 0 if it held.

Each attack runs against a live broker while a healthy user is served beside it, checks that it got nowhere
(`AssertionError` where it did), and has a bound for the broker's memory. `test_chaos_attacks.py` runs all of
them in small; `make attacks` in full.
"""

import contextlib
import random
import re
import select
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import cramjam

from tests.chaos.attacked_broker import (
    PASSWORD,
    PRODUCE,
    SCRAM_CREDENTIALS,
    TIMEOUT_MS,
    USER,
    AttackedBroker,
    Figures,
    Siege,
    produce_body,
)
from tests.chaos.hostile_frames import sealed_batch
from tests.chaos.kafka_wire import frame
from tidelog.client.faults import ClientFault
from tidelog.client.link import Link
from tidelog.model.errors import ErrorCode
from tidelog.protocol.primitives import unsigned_varint
from tidelog.records.compression import Codec, compress

METADATA, OFFSET_FETCH, HANDSHAKE, API_VERSIONS, AUTHENTICATE = 3, 9, 17, 18, 36
ANSWER_SECONDS_MAX = 60.0
MIB = 1 << 20
Told = dict[str, object]


@dataclass(frozen=True)
class Attack:
    """One attack: what it does with how much, and how large the broker may become."""

    run: Callable[[AttackedBroker, int], Told]
    amount: int
    amount_in_tests: int
    memory_mib_max: int


# -- pieces


def connect(broker: AttackedBroker, listener: str, seconds: float = ANSWER_SECONDS_MAX) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.ports[listener]), seconds)


def everything(stream: socket.socket, seconds: float) -> bytes | None:
    """What the broker says before it closes the connection; None if it does not within the time."""
    deadline = time.monotonic() + seconds
    said = bytearray()
    try:
        while (left := deadline - time.monotonic()) > 0:
            stream.settimeout(left)
            part = stream.recv(65536)
            if not part:
                return bytes(said)
            said += part
    except TimeoutError:
        return None
    except OSError:
        return bytes(said)
    return None


def closed(stream: socket.socket, seconds: float) -> bool:
    """Whether the broker closes the connection within the time, whatever it says before."""
    return everything(stream, seconds) is not None


def request(key: int, version: int, body: bytes) -> bytes:
    return frame(key, version, 7, body, flexible=False)


def string(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


# -- SASL


def _exchanges(chance: random.Random) -> Iterator[tuple[str, list[bytes]]]:
    """Logins that are wrong in some way: a mechanism, and the tokens of the exchange."""
    first = b"n,,n=healthy,r=nonce"
    while True:
        noise = chance.randbytes(chance.randrange(1, 300))
        broken = bytearray(chance.choice([first, b"c=biws,r=nonce,p=AAAA", b"\0healthy\0wrong", noise]))
        for _ in range(chance.randrange(1, 4)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        yield chance.choice(["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]), [bytes(broken)]
        yield "PLAIN", [b"\0healthy\0" + noise.replace(b"\0", b"")]
        yield "SCRAM-SHA-256", [first, b"c=biws,r=nonce" + noise + b",p=AAAA"]
        yield "SCRAM-SHA-256", [first, first, first]
        yield "SCRAM-SHA-512", [b"n,a=root,n=healthy,r=x"]
        yield "SCRAM-SHA-256", [b"n,,n=" + b"u" * chance.randrange(1, 100_000) + b",r=x"]
        yield "SCRAM-SHA-256", [b"n,,n=t,r=x,tokenauth=true", b"c=biws,r=x,p=" + b"A" * 44]
        deep = b"W1tb" * chance.randrange(1, 10_000)
        yield "OAUTHBEARER", [b"n,,\x01auth=Bearer " + deep + b".e30.\x01\x01", b"\x01"]
        yield "OAUTHBEARER", [b"n,,\x01auth=Bearer e30." + noise.hex().encode() + b".\x01\x01"]


def _attempt(stream: socket.socket, mechanism: str, tokens: list[bytes], chance: random.Random) -> bytes:
    """Send a whole exchange with a request for metadata behind it; what the broker said."""
    raw = chance.random() < 0.3
    stream.sendall(request(HANDSHAKE, 0 if raw else 1, string(mechanism.encode())))
    stream.settimeout(ANSWER_SECONDS_MAX)
    with contextlib.suppress(OSError):
        for token in tokens:
            stream.sendall(sized(token) if raw else request(AUTHENTICATE, 0, sized(token)))
            if chance.random() < 0.5:
                select.select([stream], [], [], 0.2)
        stream.sendall(request(METADATA, 1, struct.pack(">i", -1)))
    said = everything(stream, ANSWER_SECONDS_MAX)
    assert said is not None, f"{mechanism} {tokens!r} keeps a connection"
    return said


def sasl_fuzz(broker: AttackedBroker, amount: int) -> Told:
    """Exchanges that are mangled; nobody may come in, and every connection must be closed."""
    chance = random.Random(20261115)
    exchanges = _exchanges(chance)
    counts: Counter[str] = Counter()
    for _ in range(amount):
        mechanism, tokens = next(exchanges)
        listener = "TOKENS" if mechanism == "OAUTHBEARER" else "SASL_PLAINTEXT"
        if listener == "SASL_PLAINTEXT" and chance.random() < 0.2:
            plain = connect(broker, "SASL_SSL")
            stream: socket.socket = broker.context().wrap_socket(plain, server_hostname="127.0.0.1")
        else:
            stream = connect(broker, listener)
        with stream:
            said = _attempt(stream, mechanism, tokens, chance)
        assert b"healthy" not in said, f"{mechanism} {tokens!r} was told of topics"
        counts[mechanism] += 1
    return {"exchanges": sum(counts.values()), "got in": 0}


# -- many connections


def slow_loris(broker: AttackedBroker, amount: int) -> Told:
    """Connections that send a byte now and then, TLS or not; all must be closed in the time for logins."""
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)
    login = request(HANDSHAKE, 1, string(b"PLAIN")) * 20
    kinds = [("SSL", hello), ("SASL_SSL", hello), ("SASL_PLAINTEXT", login), ("SASL_PLAINTEXT", b"")]
    streams = [(connect(broker, kinds[n % 4][0]), kinds[n % 4][1]) for n in range(amount)]
    begun = time.monotonic()
    seconds_max = TIMEOUT_MS / 1000 + 10
    alive = dict(streams)
    worst = 0.0
    position = 0
    while alive and time.monotonic() - begun < seconds_max:
        for stream, data in list(alive.items()):
            stream.setblocking(False)
            try:
                if position < len(data):
                    stream.send(data[position : position + 1])
                ended = stream.recv(100) == b""
            except BlockingIOError:
                ended = False
            except OSError:
                ended = True
            if ended:
                worst = time.monotonic() - begun
                stream.close()
                del alive[stream]
        position += 1
        time.sleep(0.05)
    for stream in alive:
        stream.close()
    assert not alive, f"{len(alive)} of {amount} slow connections live on"
    return {"connections": amount, "the last was closed after s": round(worst, 1)}


def idle_plain(broker: AttackedBroker, amount: int) -> Told:
    """Connections that say nothing at all on a plain listener, where they may."""
    return _hold(broker, amount, lambda: connect(broker, "PLAINTEXT"))


def idle_tls(broker: AttackedBroker, amount: int) -> Told:
    """Connections that say nothing after their TLS handshake."""
    context = broker.context()

    def shake() -> socket.socket:
        return context.wrap_socket(connect(broker, "SSL"), server_hostname="127.0.0.1")

    return _hold(broker, amount, shake)


def _is_closed(stream: socket.socket) -> bool:
    """Whether the other side has closed a connection on which it has nothing to say."""
    stream.setblocking(False)
    try:
        return stream.recv(1) == b""
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True


def _hold(broker: AttackedBroker, amount: int, open_one: Callable[[], socket.socket]) -> Told:
    before = broker.resident_bytes()
    streams = []
    begun = time.monotonic()
    try:
        for _ in range(amount):
            streams.append(open_one())
        opened = time.monotonic() - begun
        time.sleep(2.0)
        each = (broker.resident_bytes() - before) / amount
        assert not any(map(_is_closed, streams)), "some were closed"
    finally:
        for stream in streams:
            stream.close()
    return {"connections": amount, "opened in s": round(opened, 1), "KB each": round(each / 1024, 1)}


# -- TLS


def _versions_refused(broker: AttackedBroker) -> int:
    """Offers of TLS 1.0 and 1.1, of suites without forward secrecy, of nothing but old suites."""
    refused = 0
    offers = [
        (ssl.TLSVersion.TLSv1, "ALL:@SECLEVEL=0"),
        (ssl.TLSVersion.TLSv1_1, "ALL:@SECLEVEL=0"),
        (ssl.TLSVersion.TLSv1_2, "AES128-SHA:AES256-SHA:AES128-GCM-SHA256:@SECLEVEL=0"),
        (ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-AES128-SHA:ECDHE-RSA-AES128-SHA:@SECLEVEL=0"),
        (ssl.TLSVersion.TLSv1_2, "aNULL:eNULL:@SECLEVEL=0"),
    ]
    for version, suites in offers:
        context = broker.context()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = context.maximum_version = version
        context.set_ciphers(suites)
        with connect(broker, "SSL") as stream, contextlib.suppress(ssl.SSLError, ConnectionResetError):
            context.wrap_socket(stream, server_hostname="127.0.0.1")
            raise AssertionError(f"{version.name} with {suites} was taken")
        refused += 1
    return refused


def _wrong_listener(broker: AttackedBroker) -> int:
    """Plain bytes to a TLS listener, TLS to a plain one, an old SSL hello."""
    metadata = request(METADATA, 1, struct.pack(">i", -1))
    ssl2 = b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10" + bytes(35)
    ssl3 = b"\x16\x03\x00\x00\x2d\x01\x00\x00\x29\x03\x00" + bytes(38)
    heartbeat = b"\x18\x03\x02\x00\x03\x01\x40\x00"
    streams = []
    for listener in ("SSL", "SASL_SSL"):
        for data in (metadata, ssl2, ssl3, heartbeat, b"GET / HTTP/1.1\r\n\r\n"):
            stream = connect(broker, listener)
            stream.sendall(data)
            streams.append((stream, data))
    for stream, data in streams:
        said = everything(stream, TIMEOUT_MS / 1000 + 10)
        assert said is not None and b"healthy" not in said, f"{data[:9]!r} keeps a connection: {said!r}"
        stream.close()
    for listener in ("PLAINTEXT", "SASL_PLAINTEXT"):
        with connect(broker, listener, 10) as stream, contextlib.suppress(OSError):
            broker.context().wrap_socket(stream, server_hostname="127.0.0.1")
            raise AssertionError("a plain listener spoke TLS")
    return 12


def _renegotiate(broker: AttackedBroker, way: str) -> str:
    """Ask for a renegotiation (R) on a connection of TLS 1.2 with OpenSSL's own client; what it says."""
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{broker.ports['SSL']}", "-tls1_2", *way.split()]
    command += ["-CAfile", str(broker.folder / "ca.pem")]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert child.stdin is not None and child.stdout is not None
    said = bytearray()
    asked = False
    deadline = time.monotonic() + 20
    try:
        while time.monotonic() < deadline:
            if select.select([child.stdout], [], [], 0.2)[0]:
                part = child.stdout.read1(65536)  # type: ignore[attr-defined]
                if not part:
                    break
                said += part
            if not asked and b"---\n" in said and b"Verify return code" in said:
                child.stdin.write(b"R\n")
                child.stdin.flush()
                asked = True
    finally:
        child.kill()
        child.wait()
    assert asked, f"the client did not come so far: {said.decode(errors='replace')[-500:]}"
    return said.decode(errors="replace")


def tls_downgrade(broker: AttackedBroker, amount: int) -> Told:
    """Old versions and suites, wrong listeners, renegotiation: refused, again and again."""
    refused = _wrong_listener(broker)
    for _ in range(amount):
        refused += _versions_refused(broker)
    renegotiations = 0
    for way in ("", "-legacy_renegotiation"):
        said = _renegotiate(broker, way)
        assert "RENEGOTIATING" in said, said[-500:]
        assert re.search("no renegotiation|alert|error", said.partition("RENEGOTIATING")[2]), said[-1000:]
        renegotiations += 1
    return {"offers refused": refused, "renegotiations refused": renegotiations}


# -- SCRAM


def scram_bomb(broker: AttackedBroker, amount: int) -> Told:
    """Credentials with billions of iterations, and passwords tried on many connections at once."""
    link = broker.link("PLAINTEXT")
    slowest = 0.0
    for iterations in (2**31 - 1, 10_000_000, 16_385, 4_095, 0, -1):
        upsertion = {"name": "bomb", "mechanism": 2, "iterations": iterations, "salt": b"s" * 20}
        upsertion["salted_password"] = b"x" * 64
        begun = time.monotonic()
        fields = {"deletions": [], "upsertions": [upsertion]}
        [result] = link.request(SCRAM_CREDENTIALS, fields, lowest=0, highest=0).results
        slowest = max(slowest, time.monotonic() - begun)
        assert int(result.error_code) == ErrorCode.UNACCEPTABLE_CREDENTIAL, iterations
    most = {"name": "most", "mechanism": 2, "iterations": 16_384, "salt": b"s" * 20}
    most["salted_password"] = b"x" * 64
    fields = {"deletions": [], "upsertions": [most]}
    [result] = link.request(SCRAM_CREDENTIALS, fields, lowest=0, highest=0).results
    assert int(result.error_code) == 0
    link.close()
    # PLAIN is what costs the broker something: every guess is hashed with all iterations.
    guesses = [connect(broker, "SASL_PLAINTEXT") for _ in range(amount)]
    for number, stream in enumerate(guesses):
        stream.sendall(request(HANDSHAKE, 1, string(b"PLAIN")))
        stream.sendall(request(AUTHENTICATE, 0, sized(b"\0most\0guess %d" % number)))
    begun = time.monotonic()
    fair = broker.link("SASL_SSL", sasl_mechanism="SCRAM-SHA-256", sasl_username=USER, sasl_password=PASSWORD)
    login = time.monotonic() - begun
    fair.close()
    for stream in guesses:
        assert closed(stream, ANSWER_SECONDS_MAX)
        stream.close()
    return {
        "bombs refused, slowest ms": round(slowest * 1000),
        "guesses": amount,
        "a login by SCRAM beside them, ms": round(login * 1000),
    }


# -- batches


def bombs() -> dict[str, bytes]:
    """Batches of not quite a megabyte that unpack to this many gigabytes of zeros."""
    room = 1_000_000
    pieces = {
        Codec.GZIP: bytes(cramjam.gzip.compress(bytes(100 << 20), 9)),
        Codec.ZSTD: bytes(cramjam.zstd.compress(bytes(100 << 20), 19)),
        Codec.LZ4: bytes(cramjam.lz4.compress(bytes(200 << 20))),
    }
    made = {}
    for codec, piece in pieces.items():
        count = max(room // len(piece), 1)
        unpacked = (200 if codec is Codec.LZ4 else 100) * count / 1024
        made[f"{codec.name.lower()} {unpacked:.1f} GB"] = sealed_batch(codec, piece * count)
    made["snappy says 2.0 GB"] = sealed_batch(Codec.SNAPPY, b"\xff\xff\xff\xff\x07" + bytes(20))
    return made


def decompression_bomb(broker: AttackedBroker, amount: int) -> Told:
    """Batches that unpack to gigabytes, for a topic whose records have to be looked at."""
    link = broker.link("PLAINTEXT")
    slowest = 0.0
    names = []
    for name, batch in bombs().items():
        assert len(batch) < 1_048_588, f"{name} has {len(batch)} bytes"
        names.append(name)
        for _ in range(amount):
            begun = time.monotonic()
            answer = bytes(link.receive(link.send(PRODUCE, 7, produce_body("table", batch))))
            slowest = max(slowest, time.monotonic() - begun)
            error = struct.unpack_from(">h", answer, 4 + 2 + len("table") + 4 + 4)[0]
            assert error in (
                ErrorCode.CORRUPT_MESSAGE,
                ErrorCode.MESSAGE_TOO_LARGE,
                ErrorCode.INVALID_RECORD,
            ), f"{name}: {ErrorCode(error).name}"
    link.close()
    return {"bombs": ", ".join(names), "each": amount, "slowest ms": round(slowest * 1000)}


#: records that fit a batch of a megabyte, by codec
TINY_RECORDS = {Codec.ZSTD: 1_200_000, Codec.GZIP: 700_000, Codec.LZ4: 240_000, Codec.SNAPPY: 240_000}


def tiny_records(count: int) -> list[bytes]:
    """So many of the smallest records that are right: an empty key, no value."""
    parts = []
    for number in range(count):
        body = b"\0\0" + unsigned_varint(2 * number) + b"\0\1\0"
        parts.append(bytes((2 * len(body),)) + body)
    return parts


def tiny_record_bombs() -> dict[str, bytes]:
    """Right batches of not quite a megabyte with as many records as that can hold."""
    most = tiny_records(max(TINY_RECORDS.values()))
    now_ms = time.time_ns() // 1_000_000
    return {
        f"{codec.name.lower()} {count:,} records": sealed_batch(
            codec, compress(codec, b"".join(most[:count])), count, now_ms
        )
        for codec, count in TINY_RECORDS.items()
    }


def tiny_record_bomb(broker: AttackedBroker, amount: int) -> Told:
    """Right batches of very many records, for a topic whose records have to be looked at, four at once."""
    made = tiny_record_bombs()
    slowest: list[float] = []

    def send(batch: bytes) -> None:
        link = broker.link("PLAINTEXT")
        for _ in range(amount):
            begun = time.monotonic()
            answer = bytes(link.receive(link.send(PRODUCE, 7, produce_body("table", batch))))
            slowest.append(time.monotonic() - begun)
            error = struct.unpack_from(">h", answer, 4 + 2 + len("table") + 4 + 4)[0]
            assert error == 0, ErrorCode(error).name
        link.close()

    with ThreadPoolExecutor(len(made)) as pool:
        for _ in pool.map(send, made.values()):
            pass
    return {"bombs": ", ".join(made), "each": amount, "slowest ms": round(max(slowest) * 1000)}


# -- giant requests


def giant_metadata(broker: AttackedBroker, amount: int) -> Told:
    """Requests that name millions of topics or partitions: refused; the largest that is taken is answered."""
    name = string(b"topic-of-nobody")
    giants = {
        "Metadata of 5,500,000 topics": request(METADATA, 1, struct.pack(">i", 5_500_000) + name * 5_500_000),
        "Metadata of 50,000,000 topics": request(
            METADATA, 1, struct.pack(">i", 50_000_000) + bytes(99_000_000)
        ),
        "OffsetFetch of 20,000,000 partitions": request(
            OFFSET_FETCH,
            1,
            string(b"g") + struct.pack(">i", 1) + name + struct.pack(">i", 20_000_000) + bytes(80_000_000),
        ),
        "Produce to 12,000,000 partitions": request(
            PRODUCE,
            3,
            struct.pack(">hhi", -1, 1, 1)
            + struct.pack(">i", 1)
            + name
            + struct.pack(">i", 12_000_000)
            + struct.pack(">ii", 0, -1) * 12_000_000,
        ),
    }
    for what, data in giants.items():
        with (
            connect(broker, "PLAINTEXT") as stream,
            contextlib.suppress(BrokenPipeError, ConnectionResetError),
        ):
            stream.sendall(data)
            assert closed(stream, ANSWER_SECONDS_MAX), f"{what} is served"
    giants.clear()
    slowest = 0.0
    for _ in range(amount):
        link = broker.link("PLAINTEXT")
        begun = time.monotonic()
        slowest = max(slowest, _largest_metadata(link) - begun)
        link.close()
    with contextlib.suppress(ClientFault):
        _largest_metadata(broker.link("PLAINTEXT"), 50_001)
        raise AssertionError("one more than the limit is served")
    return {"giants refused": 5, "largest that is served, ms": round(slowest * 1000)}


def _largest_metadata(link: Link, count: int = 50_000) -> float:
    names = b"".join(string(b"nobody-%06d" % number) for number in range(count))
    link.receive(link.send(METADATA, 4, struct.pack(">i", count) + names + b"\x00"))
    return time.monotonic()


ATTACKS = {
    "SASL fuzzing": Attack(sasl_fuzz, 5_000, 400, 120),
    "slow loris": Attack(slow_loris, 2_000, 200, 160),
    "5,000 idle connections": Attack(idle_plain, 5_000, 5_000, 160),
    "idle connections with TLS": Attack(idle_tls, 5_000, 500, 300),
    "downgrade and renegotiation": Attack(tls_downgrade, 20, 2, 160),
    "SCRAM iteration bombs": Attack(scram_bomb, 500, 60, 160),
    "decompression bombs": Attack(decompression_bomb, 5, 1, 600),
    "bombs of tiny records": Attack(tiny_record_bomb, 3, 1, 600),
    "giant metadata requests": Attack(giant_metadata, 5, 1, 600),
}


def besiege(broker: AttackedBroker, attack: Attack, amount: int) -> tuple[Told, Figures]:
    """Run an attack beside a healthy user, and hold it against its bound."""
    with Siege(broker) as siege:
        told = attack.run(broker, amount)
    figures = siege.figures()
    bound = attack.memory_mib_max
    assert figures.largest_mib <= bound, f"{figures.largest_mib} MiB, more than {bound}: {figures}"
    return told, figures


def main(names: list[str]) -> int:
    failed = 0
    for name, attack in ATTACKS.items():
        if names and not any(wanted in name for wanted in names):
            continue
        # Each has a broker of its own: what one leaves behind is not the next one's.
        with (
            tempfile.TemporaryDirectory(prefix="tidelog-attack-") as folder,
            AttackedBroker(Path(folder)) as broker,
        ):
            try:
                told, figures = besiege(broker, attack, attack.amount)
            except AssertionError as fault:
                print(f"FAILED {name}: {fault}", flush=True)
                failed += 1
                continue
        print(f"{name}: {', '.join(f'{key}: {value}' for key, value in told.items())}", flush=True)
        print(f"  {figures}; bound {attack.memory_mib_max} MiB", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
