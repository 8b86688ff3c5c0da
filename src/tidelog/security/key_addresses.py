"""Where the keys of tokens may come from: a file, TLS, or plain http on this machine."""

import ipaddress
from urllib.parse import urlsplit

PLAIN_HTTP = "tidelog.sasl.oauthbearer.jwks.plain.http"
_SCHEMES = ("https", "http", "file")


def address_fault(url: str, *, plain_http: bool) -> str | None:
    """Why keys must not come from a URL, as the end of a sentence; None if they may."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as fault:
        return str(fault)
    if parts.scheme not in _SCHEMES:
        return "it must begin with https:, http: or file:"
    if parts.scheme == "http" and not plain_http and not _is_loopback(host):
        return (
            "whoever is on the way could put other keys there and be anybody; use https:, or set"
            f" {PLAIN_HTTP}=true"
        )
    return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
