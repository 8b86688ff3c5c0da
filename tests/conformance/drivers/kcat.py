"""kcat: the command line over librdkafka (an old one, 2.0, where it is Debian's package).

It takes binary keys and values through its standard input between delimiters that no message contains, and
prints them back with their lengths. Headers are text in its arguments and `name=value` pairs in its output.
"""

import itertools
import subprocess
from collections.abc import Sequence

from tests.conformance.drivers.contract import (
    ALL_CODECS,
    DEADLINE_SECONDS,
    Ability,
    DriverTimeout,
    Headers,
    Message,
    in_order,
    require_program,
)

MESSAGE_DELIMITER = "\x02END\x03"
KEY_DELIMITER = "\x02KEY\x03"
FORMAT = "%p %o %T %K %S\\n%k%s%h\\x1e\\n"


def run_kcat(*arguments: str, stdin: bytes = b"") -> bytes:
    """kcat's output; its failure is an assertion that carries what it printed."""
    command = [require_program("kcat"), *arguments]
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, timeout=DEADLINE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as timeout:
        raise DriverTimeout(f"{command} printed only {timeout.stdout!r} {timeout.stderr!r}") from None
    assert done.returncode == 0, (
        f"{command} ended with {done.returncode}: {done.stderr.decode(errors='replace')}"
    )
    return done.stdout


def parse_output(output: bytes) -> list[Message]:
    """What `-f FORMAT` printed."""
    messages = []
    position = 0
    while position < len(output):
        line_end = output.index(b"\n", position)
        partition, offset, timestamp_ms, key_size, value_size = map(int, output[position:line_end].split())
        key_end = line_end + 1 + max(key_size, 0)
        value_end = key_end + max(value_size, 0)
        headers_end = output.index(b"\x1e\n", value_end)
        headers = output[value_end:headers_end]
        messages.append(
            Message(
                value=None if value_size < 0 else output[key_end:value_end],
                key=None if key_size < 0 else output[line_end + 1 : key_end],
                headers=(("kcat", headers),) if headers else (),
                partition=partition,
                timestamp_ms=timestamp_ms,
                offset=offset,
            )
        )
        position = headers_end + 2
    return messages


class KcatDriver:
    name = "kcat"
    codecs = ALL_CODECS
    can = frozenset({Ability.INTERLEAVED_HEADERS, Ability.NULL_HEADER})

    def __init__(self) -> None:
        require_program("kcat")

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        *,
        codec: str = "none",
        acks: str = "all",
    ) -> None:
        for (partition, headers), group in itertools.groupby(
            messages, key=lambda message: (message.partition, message.headers)
        ):
            options = [
                f"-H{name}" if value is None else f"-H{name}={value.decode()}" for name, value in headers
            ]
            run_kcat(
                *(
                    "-P",
                    "-b",
                    bootstrap,
                    "-t",
                    topic,
                    "-p",
                    str(partition),
                    "-z",
                    codec,
                    "-X",
                    f"acks={acks}",
                ),
                *("-X", "linger.ms=1", "-D", MESSAGE_DELIMITER, "-K", KEY_DELIMITER, *options),
                stdin=b"".join(map(self._framed, group)),
            )

    @staticmethod
    def _framed(message: Message) -> bytes:
        assert message.value is not None, "kcat cannot tell null from empty on its input"
        key = b"" if message.key is None else message.key + KEY_DELIMITER.encode()
        return key + message.value + MESSAGE_DELIMITER.encode()

    def presents(self, headers: Headers) -> Headers:
        # It prints a value as a C string, up to its first zero byte.
        text = b",".join(
            name.encode() + b"=" + (b"NULL" if value is None else value.split(b"\0")[0])
            for name, value in headers
        )
        return (("kcat", text),) if headers else ()

    def consume(
        self, bootstrap: str, counts: dict[str, int], partition_count: int
    ) -> dict[str, list[Message]]:
        return {topic: in_order(self._read(bootstrap, topic, count)) for topic, count in counts.items()}

    @staticmethod
    def _read(bootstrap: str, topic: str, count: int) -> list[Message]:
        return parse_output(
            run_kcat(
                *("-C", "-q", "-b", bootstrap, "-t", topic, "-o", "beginning", "-c", str(count)),
                *("-X", "fetch.wait.max.ms=100", "-f", FORMAT),
            )
        )
