"""From a frame to an answer: header, API row, handler.

`Dispatcher.handle` takes one request frame and returns the answer's chunks, a `PendingAnswer` that is filled
later, `HELD` where the frame shall be offered again after `ConnectionContext.throttle_ms`, or None where the
protocol has no answer (Produce with acks=0). It raises `CloseConnection` where Kafka closes the connection:
an unknown API or version, or bytes that do not follow the schema.

Reading a request, asking the authorizer and writing the answer can be put aside for a while, where the caller
runs `handle` in slices (`protocol/slices.py`); what a handler does is one step, unless its API is one of
`PAUSING`: it reads one image, and nothing that changes, or its rows do not depend on each other.

`Dispatcher.serve` is the way in for bytes: requests that look like earlier ones take the fast paths (see
docs/adr/0022-fast-paths.md), all others go through `handle`.

Produce, Fetch and ApiVersions have hand-written codecs; every other API is decoded and encoded through kio.
The module of its name in `tidelog.broker.requests.handlers` has a class `Handler`, which names the parts of
the broker that it needs; it is made, and the module imported, when the API is first asked for.
"""

import logging
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.connection_context import ConnectionContext, Gate
from tidelog.broker.requests.live_quotas import LiveQuotas
from tidelog.broker.requests.newcomers import Newcomers
from tidelog.broker.requests.produce_fast_path import ProduceFastPath
from tidelog.broker.requests.request import HELD, CloseConnection, PendingAnswer, Request
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.metrics import RequestMetrics
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.model.errors import ErrorCode
from tidelog.protocol import api_versions, messages
from tidelog.protocol.api_versions import Feature
from tidelog.protocol.apis import (
    API_VERSIONS,
    APIS,
    DESCRIBE_BACKGROUND_JOBS,
    DESCRIBE_CONFIGS,
    DESCRIBE_DELAYS,
    DESCRIBE_SHARE_PARTITIONS,
    FETCH,
    METADATA,
    PRIVATE_APIS,
    PRODUCE,
    Api,
)
from tidelog.protocol.headers import (
    FRAME_SIZE_BYTES,
    FRAME_SIZE_MIN,
    REQUEST_PREFIX,
    body_position,
    response_chunks,
    response_frame,
)
from tidelog.protocol.primitives import INT32, MalformedRequest
from tidelog.protocol.schema_writer import AnswerTooLong
from tidelog.protocol.slices import clock_ns, whole

if TYPE_CHECKING:
    from tidelog.broker.requests.authorization import Authorization

log = logging.getLogger(__name__)

Handle = Callable[[ConnectionContext, memoryview], Any]

#: APIs whose handlers make an answer from what does not change in between, or row by row, in slices
PAUSING = frozenset({METADATA, DESCRIBE_CONFIGS})
#: larger frames of Produce and Fetch, and all others, may take long
QUICK_FRAME_BYTES_MAX = 4 << 10
METADATA_CACHE_ENTRIES_MAX = 256
METADATA_CACHE_REQUEST_BYTES_MAX = 4096
METADATA_CACHE_BYTES_MAX = 16 << 20
#: no client needs a longer answer: something was asked for again and again
ANSWER_BYTES_MAX = 512 << 20
#: elements in an array of an answer that nobody waits for in one step
LONG_ANSWER_ELEMENTS = 500


def _is_long(fields: messages.Fields) -> bool:
    """Whether an answer takes more than a slice to write."""
    return any(isinstance(value, list) and len(value) > LONG_ANSWER_ELEMENTS for value in fields.values())


class Calls:
    """How calls are made that may take long: here at once, in a server in slices."""

    __slots__ = ()

    def serve(self, handle: Handle, context: ConnectionContext, frame: memoryview) -> Any:
        """Serve a frame on the general path that may take long."""
        return handle(context, frame)

    def later(self, call: Callable[[], None]) -> None:
        """Make a long call for which nobody waits here."""
        whole(call)


class Dispatcher:
    """Routes frames to handlers."""

    def __init__(
        self,
        make_handler: Callable[[Api], Any],
        produce_fast_path: ProduceFastPath,
        *,
        metadata: Metadata,
        settings: LiveSettings,
        authorization: "Authorization | None",
        quotas: LiveQuotas,
        requests: RequestMetrics,
        newcomers: Newcomers,
        features: Mapping[str, Feature],
        calls: Calls,
    ) -> None:
        """`make_handler` makes the handler of an API when it is first asked for."""
        self._make_handler = make_handler
        self._metadata = metadata
        self._settings = settings
        self._authorization = authorization
        self._quotas = quotas
        self._requests = requests
        self._newcomers = newcomers
        self._features = features
        self._calls = calls
        self.produce_fast_path = produce_fast_path
        self._produce_run = produce_fast_path.run
        self._produce_again = produce_fast_path.again
        self._produce = make_handler(APIS[PRODUCE]).handle
        self._fetch = make_handler(APIS[FETCH]).handle
        self._handlers: dict[int, Callable[..., Any]] = {}
        self._metadata_cache: dict[tuple[int, str, tuple[str, str] | None, bytes], bytes] = {}
        self._metadata_cache_bytes = 0
        self._metadata_version = -1
        self._began_ns = 0
        self._elements_max = settings.static.get_int("tidelog.request.elements.max")

    def serve(
        self, context: ConnectionContext, view: memoryview, start: int, end: int
    ) -> tuple[Any, int] | None:
        """Serve the frame at `start` of what arrived: the answer, and where the next frame begins.

        None if no frame is there whole. Like requests one behind the other are served together, and have one
        answer together; one like an earlier one is served by its template; any other is decoded.
        """
        if end - start < FRAME_SIZE_BYTES:
            return None
        size = INT32.unpack_from(view, start)[0]
        if size < FRAME_SIZE_MIN or size > context.frame_bytes_max:
            raise CloseConnection(f"a frame of {size} bytes (limit {context.frame_bytes_max})")
        stop = start + FRAME_SIZE_BYTES + size
        if stop > end:
            return None
        if context.produce_template_end:
            if end - stop <= size:
                context.run_in_vain = False
            elif not context.run_in_vain:
                run = self._produce_run(context, view, start, end)
                if run is not None:
                    answers, stop = run
                    self._requests.fast_path_count += len(answers)
                    return b"".join(answers), stop
                # Not for every frame that is left again: a client that means ill would have each of them
                # checked as often as there are frames before it.
                context.run_in_vain = True
            answer = self._produce_again(context, view, start + FRAME_SIZE_BYTES, stop)
            if answer is not None:
                if not isinstance(answer, bytes):
                    return self._settle_timed(answer, PRODUCE), stop
                self._requests.fast_path_count += 1
                return answer, stop
        frame = view[start + FRAME_SIZE_BYTES : stop]
        if size <= QUICK_FRAME_BYTES_MAX and frame[1] <= FETCH and not frame[0]:
            return self.handle(context, frame), stop
        return self._calls.serve(self.handle, context, frame), stop

    def _settle_timed(self, delayed: DelayedAnswer, key: int) -> PendingAnswer:
        """Give a parked request its place; its time is counted when its answer comes."""
        pending = PendingAnswer(delayed)
        delayed.deliver_to(pending.fill)
        requests = self._requests
        pending.api_key, pending.began_ns, pending.requests = key, requests.began_ns, requests
        return pending

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
        quotas = self._quotas.current
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
                produced = self._produce(context, version, correlation_id, frame, position)
                if produced is HELD:
                    return HELD
                answer = self._settle(produced)
            elif key == FETCH:
                answer = self._settle(self._fetch(context, version, correlation_id, frame, position))
            elif key == API_VERSIONS:
                answer = self._api_versions(context, version, correlation_id, frame, position)
            elif key == METADATA:
                answer = self._serve_metadata(context, api, version, correlation_id, frame, position)
            else:
                answer = self._control(context, api, version, correlation_id, frame, position)
        except (MalformedRequest, AnswerTooLong) as fault:
            if quotas is not None:
                quotas.finished(context, clock_ns() - began_ns)
            reason = "malformed request" if isinstance(fault, MalformedRequest) else api.name
            raise CloseConnection(f"{reason}: {fault}") from fault
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

    def _raw_token(self, gate: Gate, frame: memoryview) -> Any:
        """A SASL token without a request around it (after SaslHandshake version 0)."""
        delayed = gate.take_raw(frame)
        if delayed is None:
            raise CloseConnection("a SASL token before the last one was answered")
        return self._settle(delayed)

    def _unserved(self, api: Api, version: int, correlation_id: int) -> bytes:
        if api.key != API_VERSIONS:
            raise CloseConnection(f"{api.name} version {version} is not supported")
        return api_versions.encode_response(0, correlation_id, ErrorCode.UNSUPPORTED_VERSION, self._features)

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
        api = PRIVATE_APIS.get(key)
        if api is None or not api.serves(version):
            raise CloseConnection(f"unknown API key {key}")
        if key == DESCRIBE_BACKGROUND_JOBS:
            return response_frame(api, version, correlation_id, self._handler_of(api)(context))
        try:
            position = body_position(frame, client_id_length, flexible=False)
            if key in (DESCRIBE_SHARE_PARTITIONS, DESCRIBE_DELAYS):
                body = self._handler_of(api)(context, frame[position:])
                return response_frame(api, version, correlation_id, body)
            authorization = self._authorization
            if authorization is not None and not authorization.allows_cluster_action(context):
                raise CloseConnection(f"{context.principal} is no broker of this cluster")
            delayed = self._handler_of(api)(context.listener_name, frame[position:])
        except MalformedRequest as fault:
            raise CloseConnection(f"malformed request: {fault}") from fault
        pending = PendingAnswer(delayed)
        delayed.deliver_to(lambda body: pending.fill(response_frame(api, version, correlation_id, body)))
        return pending if pending.chunks is None else pending.chunks

    def _api_versions(
        self, context: ConnectionContext, version: int, correlation_id: int, frame: memoryview, position: int
    ) -> bytes:
        request = api_versions.decode_request(frame, position, version)
        metadata = self._metadata
        error = api_versions.check_request(request, version, metadata.image.cluster_id, metadata.node_id)
        self._newcomers.met(context)
        return api_versions.encode_response(version, correlation_id, error, self._features)

    def _serve_metadata(
        self,
        context: ConnectionContext,
        api: Api,
        version: int,
        correlation_id: int,
        frame: memoryview,
        position: int,
    ) -> Any:
        """Metadata answers depend on the request's bytes, the image and who asks; they are kept encoded."""
        image_version = self._metadata.image.version
        if image_version != self._metadata_version:
            self._metadata_cache.clear()
            self._metadata_cache_bytes = 0
            self._metadata_version = image_version
        quotas = self._quotas.current
        counted = quotas is not None and quotas.limits_requests(context)
        if counted or len(frame) - position > METADATA_CACHE_REQUEST_BYTES_MAX:
            return self._control(context, api, version, correlation_id, frame, position)
        asker = None if self._authorization is None else (context.principal, context.host)
        key = (version, context.listener_name, asker, bytes(frame[position:]))
        body = self._metadata_cache.get(key)
        if body is not None:
            return response_frame(api, version, correlation_id, body)
        result = self._call(context, api, version, frame, position)
        if isinstance(result, DelayedAnswer):
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

    def _handler_of(self, api: Api) -> Callable[..., Any]:
        """What handles an API, made when it is first asked for."""
        handle = self._handlers.get(api.key)
        if handle is None:
            handle = self._make_handler(api).handle
            if api.key not in PAUSING:
                handle = partial(whole, handle)
            self._handlers[api.key] = handle
        return handle

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
        if isinstance(result, DelayedAnswer):
            return self._settle_control(context, result, api, version, correlation_id)
        self._requests.look_for_errors(api.key, result)
        pieces = messages.encode_response_pieces(api, version, result, ANSWER_BYTES_MAX)
        return response_chunks(api, version, correlation_id, pieces)

    def _call(
        self, context: ConnectionContext, api: Api, version: int, frame: memoryview, position: int
    ) -> Any:
        began_ns = self._began_ns  # of this request: others begin while it is put aside
        handle = self._handler_of(api)
        body = messages.decode_request(api, version, frame, position, self._elements_max)
        request = Request(context, api, version, body)
        quotas = self._quotas.current
        if quotas is not None:
            return quotas.serve(
                lambda asked: self._authorized(handle, asked), request, lambda: clock_ns() - began_ns
            )
        return self._authorized(handle, request)

    def _authorized(self, handle: Callable[[Request], Any], request: Request) -> Any:
        if self._authorization is None:
            return handle(request)
        from tidelog.broker.requests.guards.table import serve_guarded

        return serve_guarded(self._authorization, self._metadata.image, self._settings, request, handle)

    @staticmethod
    def _settle(result: Any) -> Any:
        """Give a parked request its place; an answer passes through."""
        if not isinstance(result, DelayedAnswer):
            return result
        pending = PendingAnswer(result)
        result.deliver_to(pending.fill)
        return pending if pending.chunks is None else pending.chunks

    def _settle_control(
        self, context: ConnectionContext, delayed: DelayedAnswer, api: Api, version: int, correlation_id: int
    ) -> Any:
        pending = PendingAnswer(delayed)
        later = False

        def deliver(fields: messages.Fields) -> None:
            if not later:
                encode(fields)  # where the request is served, which can be put aside
            elif _is_long(fields):
                self._calls.later(partial(encode, fields))
            else:
                # Whoever brings the answer may be in the middle of something.
                whole(encode, fields)

        def encode(fields: messages.Fields) -> None:
            quotas = self._quotas.current if later else None
            began_ns = 0 if quotas is None else clock_ns()
            self._requests.look_for_errors(api.key, fields)
            # Nobody could be told of what goes wrong later.
            bytes_max = sys.maxsize if later else ANSWER_BYTES_MAX
            pieces = messages.encode_response_pieces(api, version, fields, bytes_max)
            if quotas is not None:
                quotas.took_later(context, clock_ns() - began_ns)
            whole(pending.fill, response_chunks(api, version, correlation_id, pieces))

        delayed.deliver_to(deliver)
        later = True
        return pending if pending.chunks is None else pending.chunks
