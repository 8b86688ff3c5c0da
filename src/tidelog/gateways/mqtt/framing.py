"""Cuts a stream of bytes into packets; a packet above the limit is refused when its length is known."""

from collections.abc import Iterator

from tidelog.gateways.mqtt.faults import Malformed, PacketFault, Reason


class PacketReader:
    """Bytes in, (first byte, body) out."""

    __slots__ = ("_needed_bytes", "_pending", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        #: the largest whole packet
        self.limit_bytes = limit_bytes
        self._pending = bytearray()
        #: before so many are there, looking again shows nothing new
        self._needed_bytes = 2

    @property
    def pending_bytes(self) -> int:
        return len(self._pending)

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Packets that are whole now; raises PacketFault. It is to be run to its end."""
        pending = self._pending
        if pending:
            pending += data
            if len(pending) < self._needed_bytes:
                return
            data = bytes(pending)
            self._pending = bytearray()
        position, end = 0, len(data)
        self._needed_bytes = 2
        while end - position >= 2:
            size, start = _remaining_length(data, position + 1, end)
            if start < 0:
                self._needed_bytes = end - position + 1
                break
            if start - position + size > self.limit_bytes:
                raise PacketFault(
                    Reason.PACKET_TOO_LARGE, f"a packet has at most {self.limit_bytes} bytes here"
                )
            if end - start < size:
                self._needed_bytes = start - position + size
                break
            first = data[position]
            position = start + size
            yield first, data[start:position]
        if position < end:
            self._pending += data[position:]


def _remaining_length(data: bytes, position: int, end: int) -> tuple[int, int]:
    """The length and where the body begins; the latter is negative where bytes are missing."""
    value = 0
    for shift in (0, 7, 14, 21):
        if position == end:
            return 0, -1
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise Malformed("the remaining length has more than four bytes")
