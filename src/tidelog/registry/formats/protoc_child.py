"""A process that compiles .proto texts with Google's compiler: native code that reads what others wrote.

    python -m tidelog.registry.formats.protoc_child

A line of JSON on standard input, {"files": {name: text}, "root": name} or {"descriptor": base64}; a line of
JSON on standard output, {"set": base64 of a FileDescriptorSet}, {"text": …} or {"fault": why}. It may use so
much memory and no more; the registry ends one that takes too long. It ends with its standard input.
"""

import base64
import contextlib
import json
import os
import resource
import sys
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MEMORY_BYTES_MAX = 1 << 30
FAULT_CHARACTERS_MAX = 2_000
_NOTICES = ("WARNING: All log messages", "W0", "I0")


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)


def _answer(question: dict[str, Any]) -> dict[str, str]:
    from google.protobuf.message import DecodeError

    from tidelog.registry.faults import BadSchema

    try:
        if "descriptor" in question:
            return {"text": _text(base64.b64decode(question["descriptor"]))}
        return {"set": base64.b64encode(compiled(question["files"], question["root"])).decode()}
    except (BadSchema, DecodeError, MemoryError) as fault:
        return {"fault": str(fault)[:FAULT_CHARACTERS_MAX] or type(fault).__name__}


def _text(data: bytes) -> str:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    from tidelog.registry.formats.protobuf_text import render

    return render(FileDescriptorProto.FromString(data))


def compiled(texts: dict[str, str], root: str) -> bytes:
    """The descriptors of a file and of what it imports; raises BadSchema with what the compiler says."""
    from grpc_tools import protoc

    from tidelog.registry.faults import BadSchema

    with tempfile.TemporaryDirectory(prefix="tidelog-protoc-") as folder:
        for name, text in texts.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        target, told = Path(folder, ".descriptors"), Path(folder, ".told")
        includes = [folder, str(files("grpc_tools") / "_proto"), str(Path(__file__).parent / "protos")]
        common = find_spec("google.type.date_pb2")
        if common is not None and common.origin is not None:
            includes.append(str(Path(common.origin).parents[2]))
        arguments = ["protoc", *(f"-I{each}" for each in includes), "--include_imports"]
        with _standard_error_in(told):
            code = protoc.main([*arguments, f"--descriptor_set_out={target}", root])
        if code:
            raise BadSchema(_complaints(told.read_text(errors="replace"), folder))
        return target.read_bytes()


def _complaints(told: str, folder: str) -> str:
    """What the compiler says is wrong, without its notices and our folder."""
    lines = [line for line in told.splitlines() if not line.startswith(_NOTICES)]
    return "; ".join(lines).replace(f"{folder}/", "") or "the compiler refused it"


@contextlib.contextmanager
def _standard_error_in(path: Path) -> Iterator[None]:
    """The compiler writes its complaints there, below Python."""
    kept = os.dup(2)
    with path.open("wb") as told:
        os.dup2(told.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


if __name__ == "__main__":
    main()
