"""Google's Protobuf compiler, behind limits: a child process that is asked one thing at a time.

What it found is kept for texts that come again, within bounds. A child that takes longer than SECONDS_MAX
or dies is replaced, and whoever asked hears that the schema cannot be used; it is replaced after
COMPILATIONS_MAX too.
"""

import base64
import hashlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from tidelog.registry.faults import BadSchema, TooComplex

SECONDS_MAX = 10.0
COMPILATIONS_MAX = 5_000
KEPT_BYTES_MAX = 32 << 20
ANSWER_BYTES_MAX = 64 << 20
_CHUNK_BYTES = 1 << 16
_STOP_SECONDS_MAX = 2.0


class Compiler:
    """Compiles; safe from any thread. `close` ends its process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._asked = 0
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._kept_bytes = 0

    def __repr__(self) -> str:
        return f"<Compiler kept={len(self._kept)}>"

    def compiled(self, files: Mapping[str, str], root: str) -> bytes:
        """A FileDescriptorSet of a file and what it imports; raises BadSchema."""
        question = {"files": dict(files), "root": root}
        text = json.dumps(question, sort_keys=True).encode()
        key = hashlib.sha256(text).digest()
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                found = base64.b64decode(self._ask(question)["set"])
                self._keep(key, found)
            else:
                self._kept.move_to_end(key)
            return found

    def text_of(self, descriptor: bytes) -> str:
        """The .proto text of a FileDescriptorProto; raises BadSchema."""
        with self._lock:
            return str(self._ask({"descriptor": base64.b64encode(descriptor).decode()})["text"])

    def close(self) -> None:
        with self._lock:
            self._end()

    def _keep(self, key: bytes, found: bytes) -> None:
        self._kept[key] = found
        self._kept_bytes += len(found)
        while self._kept_bytes > KEPT_BYTES_MAX:
            self._kept_bytes -= len(self._kept.popitem(last=False)[1])

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        self._asked += 1
        if self._asked > COMPILATIONS_MAX:
            self._end()
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
            line = self._line(process)
        except OSError as fault:
            self._end()
            raise BadSchema(f"the Protobuf compiler ended over this schema: {fault}") from fault
        found = json.loads(line)
        if "fault" in found:
            raise BadSchema(str(found["fault"]))
        return dict(found)

    def _line(self, process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        deadline = time.monotonic() + SECONDS_MAX
        found = bytearray()
        descriptor = process.stdout.fileno()
        while not found.endswith(b"\n"):
            seconds = deadline - time.monotonic()
            if seconds <= 0 or len(found) > ANSWER_BYTES_MAX:
                self._end()
                raise TooComplex("compiling the schema takes too long, or yields too much")
            if not select.select([descriptor], [], [], seconds)[0]:
                continue
            data = os.read(descriptor, _CHUNK_BYTES)
            if not data:
                raise BrokenPipeError("no answer")
            found += data
        return bytes(found)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None:
            self._asked = 0
            # A session of its own: Ctrl-C is for the registry, which ends its child by itself.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tidelog.registry.formats.protoc_child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait(_STOP_SECONDS_MAX)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    # What was not yet written to it is not wanted any more.
                    continue


COMPILER = Compiler()
