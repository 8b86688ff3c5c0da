"""Fetches keys over http or https, and follows a redirect only to where they might have come from at once.

A redirect never leaves TLS: an issuer that sends us from https: to http:, to a file or to another scheme is
refused, whatever is allowed elsewhere. Blocking; for worker threads.
"""

import urllib.error
import urllib.request
from http.client import HTTPMessage
from typing import IO, Any
from urllib.parse import urlsplit

from tidelog.security.key_addresses import address_fault

FETCH_SECONDS_MAX = 5.0


class _CarefulRedirects(urllib.request.HTTPRedirectHandler):
    def __init__(self, plain_http: bool) -> None:
        self._plain_http = plain_http

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> Any:
        fault = address_fault(newurl, plain_http=self._plain_http)
        scheme = urlsplit(newurl).scheme
        if fault is None and scheme != "https" and scheme != urlsplit(req.full_url).scheme:
            fault = "it is weaker than where we were sent from"
        if fault is not None:
            raise urllib.error.URLError(f"a redirect to {newurl} is not followed: {fault}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def download(url: str, size_bytes_max: int, *, plain_http: bool) -> bytes:
    """The content at a URL, cut at a size; raises OSError or ValueError."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _CarefulRedirects(plain_http),
    ):
        opener.add_handler(handler)
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    with opener.open(request, timeout=FETCH_SECONDS_MAX) as answer:
        return bytes(answer.read(size_bytes_max))
