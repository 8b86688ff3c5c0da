"""From a frame to an answer: header, API row, handler.

`Dispatcher.handle` takes one request frame and returns the answer's chunks, a `PendingAnswer` that is filled
later, `HELD` where the frame shall be offered again after `ConnectionContext.throttle_ms`, or None where the
protocol has no answer (Produce with acks=0). It raises `CloseConnection` where Kafka closes the connection:
an unknown API or version, or bytes that do not follow the schema.

Reading a request, asking the authorizer and writing the answer can be put aside for a while, where the caller
runs `handle` in slices (`protocol/slices.py`); what a handler does is one step, unless its module says
`MAY_PAUSE`: it reads one image, and nothing that changes.

Produce, Fetch and ApiVersions have hand-written codecs; every other API is decoded and encoded through kio
and served by the module of its name in `tidelog.broker.handlers`, imported on first use.
"""

import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.broker.fetch_shapes import FetchShape
from tidelog.broker.parking import Parked
from tidelog.broker.produce_shapes import ProduceShape
from tidelog.broker.submitting import CONTROLLER_COMMAND_KEY
from tidelog.model.credentials import ANONYMOUS
from tidelog.model.errors import ErrorCode
from tidelog.protocol import api_versions, messages
from tidelog.protocol.apis import (
    API_VERSIONS,
    APIS,
    DESCRIBE_BACKGROUND_JOBS,
    FETCH,
    METADATA,
    PRODUCE,
    Api,
    Family,
)
from tidelog.protocol.headers import (
    REQUEST_PREFIX,
    body_position,
    read_client_id,
    response_chunks,
    response_frame,
)
from tidelog.protocol.primitives import MalformedRequest
from tidelog.protocol.slices import clock_ns, whole

if TYPE_CHECKING:
    from tidelog.broker.authentication import Authentication
    from tidelog.broker.broker import Broker
    from tidelog.broker.long_checks import Checked
    from tidelog.broker.metrics import RequestMetrics

log = logging.getLogger(__name__)

#: spoken among brokers only; outside the table, so it is neither advertised nor decoded by a schema
CONTROLLER_COMMAND = Api(CONTROLLER_COMMAND_KEY, "ControllerCommand", 0, 0, None, Family.METADATA)
JOBS = Api(DESCRIBE_BACKGROUND_JOBS, "DescribeBackgroundJobs", 0, 0, None, Family.METADATA)
METADATA_CACHE_ENTRIES_MAX = 256
METADATA_CACHE_REQUEST_BYTES_MAX = 4096
METADATA_CACHE_BYTES_MAX = 16 << 20
#: elements in an array of an answer that nobody waits for in one step
LONG_ANSWER_ELEMENTS = 500


#: the request waits for its turn: its principal is above a quota; the server offers it again
HELD = object()


class CloseConnection(Exception):
    """The peer broke the protocol in a way that has no answer."""


class ConnectionContext:
    """What the broker knows of the peer on one connection."""

    __slots__ = (
        "authentication",
        "checked",
        "client_id",
        "client_id_length",
        "client_id_raw",
        "counted_ns",
        "encrypted",
        "fetch_shape",
        "finish",
        "frame_bytes_max",
        "gate",
        "host",
        "is_replica",
        "last_api_key",
        "listener_name",
        "port",
        "principal",
        "produce_shape_end",
        "produce_shapes",
        "produce_shapes_bytes",
        "software",
        "throttle_ms",
        "token_id",
        "wait_for",
    )

    def __init__(self, host: str, port: int, listener_name: str) -> None:
        self.host = host
        self.port = port
        self.listener_name = listener_name
        self.principal = ANONYMOUS
        #: SASL of this connection, where its listener has it, and whether every frame must pass by it now
        self.authentication: Authentication | None = None
        self.gate: Authentication | None = None
        #: the delegation token that it authenticated with, if it did
        self.token_id = ""
        self.encrypted = False
        #: whether the last Fetch request came from a broker: it is not counted
        self.is_replica = False
        #: what was counted of the time of the request that is served now; None if it is not to be counted
        self.counted_ns: int | None = 0
        #: for how long the server shall read nothing from it, since it is above a quota
        self.throttle_ms = 0
        #: what was found of batches whose check takes long, for the Produce request that is offered next
        self.checked: Checked | None = None
        #: for a request that is held: takes the call that has it offered again
        self.wait_for: Callable[[Callable[[], None]], None] | None = None
        #: closes the connection once what was answered has left; None when it is gone
        self.finish: Callable[[], None] | None = None
        #: the largest frame that is taken from it at present
        self.frame_bytes_max = 0
        self.software = ("", "")
        #: of the last request that went the long way
        self.last_api_key = -1
        self.client_id: str | None = None
        self.client_id_length = -1
        self.client_id_raw = b""
        #: shapes of earlier Produce requests, and how long the last one was (see produce_shapes)
        self.produce_shapes: dict[bytes, ProduceShape] = {}
        self.produce_shapes_bytes = 0
        self.produce_shape_end = 0
        #: the shape of the last Fetch request, if it has one (see fetch_shapes)
        self.fetch_shape: FetchShape | None = None

    def forget_shapes(self) -> None:
        """Let the next Produce or Fetch request go the long way: what was allowed may not be any more."""
        self.fetch_shape = None
        self.forget_produce_shapes()

    def forget_produce_shapes(self) -> None:
        """Let the next Produce requests go the long way."""
        self.produce_shapes.clear()
        self.produce_shapes_bytes = 0
        self.produce_shape_end = 0

    def remember_client_id(self, frame: memoryview, length: int) -> None:
        """Keep the client id, decoding it only when it changes."""
        raw = bytes(frame[REQUEST_PREFIX.size : REQUEST_PREFIX.size + max(length, 0)])
        if length != self.client_id_length or raw != self.client_id_raw:
            self.client_id = read_client_id(frame, length)
            self.client_id_length = length
            self.client_id_raw = raw

    def __repr__(self) -> str:
        return (
            f"<ConnectionContext {self.host}:{self.port} {self.listener_name} {self.principal} "
            f"client_id={self.client_id!r}>"
        )


@dataclass(frozen=True, slots=True)
class Request:
    """A decoded control-plane request as a handler sees it."""

    context: ConnectionContext
    api: Api
    version: int
    body: Any


class PendingAnswer:
    """The place of a parked request in its connection's order of answers."""

    __slots__ = ("api_key", "began_ns", "change", "chunks", "on_filled", "parked", "requests")

    def __init__(self, parked: Parked) -> None:
        self.parked = parked
        #: who counts the answer, under which API, and when its request arrived
        self.requests: RequestMetrics | None = None
        self.api_key = self.began_ns = 0
        self.chunks: Any = None
        #: what is done to the answer when it comes
        self.change: Callable[[Any], Any] | None = None
        self.on_filled: Callable[[], None] | None = None

    def fill(self, chunks: Any) -> None:
        self.chunks = chunks if self.change is None else self.change(chunks)
        if self.requests is not None:
            self.requests.answered(self.api_key, self.began_ns)
        if self.on_filled is not None:
            self.on_filled()


Handler = Callable[["Broker", Request], Any]


def _is_long(fields: messages.Fields) -> bool:
    """Whether an answer takes more than a slice to write."""
    return any(isinstance(value, list) and len(value) > LONG_ANSWER_ELEMENTS for value in fields.values())


class Dispatcher:
    """Routes frames to handlers; one per broker."""

    def __init__(self, broker: "Broker") -> None:
        from tidelog.broker.handlers import fetch, produce

        self._broker = broker
        self._requests = broker.metrics.requests
        self._produce = produce.handle
        self._produce_again = produce.handle_again
        self._produce_run = produce.handle_run
        self._fetch = fetch.handle
        self._handlers: dict[int, Handler] = {}
        self._metadata_cache: dict[tuple[int, str, tuple[str, str] | None, bytes], bytes] = {}
        self._metadata_cache_bytes = 0
        self._metadata_version = -1
        self._began_ns = 0
        #: makes a long call in slices, beginning later; the server says how
        self.run_in_slices: Callable[[Callable[[], None]], None] = whole
        self._elements_max = broker.static_settings.get_int("tidelog.request.elements.max")

    def handle_again(
        self, context: ConnectionContext, buffer: memoryview, start: int, stop: int
    ) -> bytes | PendingAnswer | None:
        """Serve a Produce request that looks like an earlier one; None if `handle` must do it."""
        answer = self._produce_again(self._broker, context, buffer, start, stop)
        if answer is None:
            return None
        if isinstance(answer, Parked):
            return self._settle_timed(answer, PRODUCE)
        self._requests.short_count += 1
        return answer

    def _settle_timed(self, parked: Parked, key: int) -> PendingAnswer:
        """Give a parked request its place; its time is counted when its answer comes."""
        pending = PendingAnswer(parked)
        parked.deliver_to(pending.fill)
        requests = self._requests
        pending.api_key, pending.began_ns, pending.requests = key, requests.began_ns, requests
        return pending

    def handle_run(
        self, context: ConnectionContext, buffer: memoryview, start: int, end: int
    ) -> tuple[list[bytes], int] | None:
        """Serve a run of such requests for one partition with one write; None if there is no run."""
        run = self._produce_run(self._broker, context, buffer, start, end)
        if run is not None:
            self._requests.short_count += len(run[0])
        return run

    def handle(self, context: ConnectionContext, frame: memoryview) -> Any:
        """Serve one frame (without its size prefix)."""
        gate = context.gate
        if gate is not None:
            if gate.raw:
                return self._raw_token(gate, frame)
            refusal = gate.refusal(REQUEST_PREFIX.unpack_from(frame)[0])
            if refusal is not None:
                raise CloseConnection(refusal)
        key, version, correlation_id, client_id_length = REQUEST_PREFIX.unpack_from(frame)
        api = APIS.get(key)
        if api is None:
            return self._private(context, key, version, correlation_id, client_id_length, frame)
        if not api.serves(version):
            return self._unserved(api, version, correlation_id)
        context.last_api_key = key
        quotas = self._broker.quotas
        self._began_ns = began_ns = 0 if quotas is None else clock_ns()
        try:
            flexible = api.first_flexible is not None and version >= api.first_flexible
            position = body_position(frame, client_id_length, flexible)
            if client_id_length != context.client_id_length or (
                client_id_length > 0
                and frame[REQUEST_PREFIX.size : REQUEST_PREFIX.size + client_id_length]
                != context.client_id_raw
            ):
                context.remember_client_id(frame, client_id_length)
            if quotas is not None and quotas.hold_ms(context, api, version):
                return HELD
            if key == PRODUCE:
                produced = self._produce(self._broker, context, version, correlation_id, frame, position)
                if produced is HELD:
                    return HELD
                answer = self._settle(produced)
            elif key == FETCH:
                answer = self._settle(
                    self._fetch(self._broker, context, version, correlation_id, frame, position)
                )
            elif key == API_VERSIONS:
                answer = self._api_versions(context, version, correlation_id, frame, position)
            elif key == METADATA:
                answer = self._metadata(context, api, version, correlation_id, frame, position)
            else:
                answer = self._control(context, api, version, correlation_id, frame, position)
        except MalformedRequest as fault:
            if quotas is not None:
                quotas.finished(context, clock_ns() - began_ns)
            raise CloseConnection(f"malformed request: {fault}") from fault
        if quotas is not None:
            if key == PRODUCE:
                answer = quotas.produced(context, version, len(frame), clock_ns() - began_ns, answer)
            elif key == FETCH:
                answer = quotas.fetch_took(context, version, clock_ns() - began_ns, answer)
            else:
                quotas.finished(context, clock_ns() - began_ns)
        requests = self._requests
        if type(answer) is PendingAnswer:
            answer.api_key, answer.began_ns, answer.requests = key, requests.began_ns, requests
        else:
            requests.answered(key, requests.began_ns)
        return answer

    def _raw_token(self, gate: "Authentication", frame: memoryview) -> Any:
        """A SASL token without a request around it (after SaslHandshake version 0)."""
        parked = gate.take_raw(frame)
        if parked is None:
            raise CloseConnection("a SASL token before the last one was answered")
        return self._settle(parked)

    def _unserved(self, api: Api, version: int, correlation_id: int) -> bytes:
        if api.key != API_VERSIONS:
            raise CloseConnection(f"{api.name} version {version} is not supported")
        return api_versions.encode_response(
            0, correlation_id, ErrorCode.UNSUPPORTED_VERSION, self._broker.features
        )

    def _private(
        self,
        context: ConnectionContext,
        key: int,
        version: int,
        correlation_id: int,
        client_id_length: int,
        frame: memoryview,
    ) -> Any:
        """What brokers ask each other, and our own tools ask them, outside Kafka's protocol."""
        if key == JOBS.key and JOBS.serves(version):
            from tidelog.broker.handlers import describe_background_jobs

            body = describe_background_jobs.handle(self._broker, context)
            return response_frame(JOBS, version, correlation_id, body)
        if key != CONTROLLER_COMMAND.key or not CONTROLLER_COMMAND.serves(version):
            raise CloseConnection(f"unknown API key {key}")
        from tidelog.broker.handlers import controller_command

        try:
            position = body_position(frame, client_id_length, flexible=False)
            authorization = self._broker.authorization
            if authorization is not None and not authorization.allows_cluster_action(context):
                raise CloseConnection(f"{context.principal} is no broker of this cluster")
            parked = whole(controller_command.handle, self._broker, context.listener_name, frame[position:])
        except MalformedRequest as fault:
            raise CloseConnection(f"malformed request: {fault}") from fault
        pending = PendingAnswer(parked)
        parked.deliver_to(
            lambda body: pending.fill(response_frame(CONTROLLER_COMMAND, version, correlation_id, body))
        )
        return pending if pending.chunks is None else pending.chunks

    def _api_versions(
        self, context: ConnectionContext, version: int, correlation_id: int, frame: memoryview, position: int
    ) -> bytes:
        broker = self._broker
        request = api_versions.decode_request(frame, position, version)
        error = api_versions.check_request(request, version, broker.image.cluster_id, broker.node_id)
        if error == ErrorCode.NONE:
            context.software = (request.software_name, request.software_version)
        broker.newcomers.met(context)
        return api_versions.encode_response(version, correlation_id, error, broker.features)

    def _metadata(
        self,
        context: ConnectionContext,
        api: Api,
        version: int,
        correlation_id: int,
        frame: memoryview,
        position: int,
    ) -> Any:
        """Metadata answers depend on the request's bytes, the image and who asks; they are kept encoded."""
        image_version = self._broker.image.version
        if image_version != self._metadata_version:
            self._metadata_cache.clear()
            self._metadata_cache_bytes = 0
            self._metadata_version = image_version
        quotas = self._broker.quotas
        counted = quotas is not None and quotas.limits_requests(context)
        if counted or len(frame) - position > METADATA_CACHE_REQUEST_BYTES_MAX:
            return self._control(context, api, version, correlation_id, frame, position)
        asker = None if self._broker.authorization is None else (context.principal, context.host)
        key = (version, context.listener_name, asker, bytes(frame[position:]))
        body = self._metadata_cache.get(key)
        if body is not None:
            return response_frame(api, version, correlation_id, body)
        result = self._call(context, api, version, frame, position)
        if isinstance(result, Parked):
            return self._settle_control(context, result, api, version, correlation_id)
        self._requests.look_for_errors(api.key, result)
        body = messages.encode_response(api, version, result)
        # It may have been put aside while it was worked out, and the metadata gone on.
        size_bytes = self._metadata_cache_bytes + len(body) + len(frame)
        if (
            image_version == self._metadata_version
            and len(self._metadata_cache) < METADATA_CACHE_ENTRIES_MAX
            and size_bytes <= METADATA_CACHE_BYTES_MAX
        ):
            self._metadata_cache[key] = body
            self._metadata_cache_bytes = size_bytes
        return response_frame(api, version, correlation_id, body)

    def _control(
        self,
        context: ConnectionContext,
        api: Api,
        version: int,
        correlation_id: int,
        frame: memoryview,
        position: int,
    ) -> Any:
        result = self._call(context, api, version, frame, position)
        if isinstance(result, Parked):
            return self._settle_control(context, result, api, version, correlation_id)
        self._requests.look_for_errors(api.key, result)
        pieces = messages.encode_response_pieces(api, version, result)
        return response_chunks(api, version, correlation_id, pieces)

    def _call(
        self, context: ConnectionContext, api: Api, version: int, frame: memoryview, position: int
    ) -> Any:
        began_ns = self._began_ns  # of this request: others begin while it is put aside
        handler = self._handlers.get(api.key)
        if handler is None:
            module = importlib.import_module(f"tidelog.broker.handlers.{api.module}")
            handler = module.handle if hasattr(module, "MAY_PAUSE") else partial(whole, module.handle)
            self._handlers[api.key] = handler
        body = messages.decode_request(api, version, frame, position, self._elements_max)
        request = Request(context, api, version, body)
        quotas = self._broker.quotas
        if quotas is not None:
            return quotas.serve(
                lambda asked: self._authorized(handler, asked), request, lambda: clock_ns() - began_ns
            )
        return self._authorized(handler, request)

    def _authorized(self, handler: Handler, request: Request) -> Any:
        authorization = self._broker.authorization
        if authorization is not None:
            return authorization.serve(handler, request)
        return handler(self._broker, request)

    @staticmethod
    def _settle(result: Any) -> Any:
        """Give a parked request its place; an answer passes through."""
        if not isinstance(result, Parked):
            return result
        pending = PendingAnswer(result)
        result.deliver_to(pending.fill)
        return pending if pending.chunks is None else pending.chunks

    def _settle_control(
        self, context: ConnectionContext, parked: Parked, api: Api, version: int, correlation_id: int
    ) -> Any:
        pending = PendingAnswer(parked)
        later = False

        def deliver(fields: messages.Fields) -> None:
            if not later:
                encode(fields)  # where the request is served, which can be put aside
            elif _is_long(fields):
                self.run_in_slices(partial(encode, fields))
            else:
                # Whoever brings the answer may be in the middle of something.
                whole(encode, fields)

        def encode(fields: messages.Fields) -> None:
            quotas = self._broker.quotas if later else None
            began_ns = 0 if quotas is None else clock_ns()
            self._requests.look_for_errors(api.key, fields)
            pieces = messages.encode_response_pieces(api, version, fields)
            if quotas is not None:
                quotas.took_later(context, clock_ns() - began_ns)
            whole(pending.fill, response_chunks(api, version, correlation_id, pieces))

        parked.deliver_to(deliver)
        later = True
        return pending if pending.chunks is None else pending.chunks
