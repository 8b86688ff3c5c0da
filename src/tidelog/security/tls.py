"""TLS from settings: PEM files or PEM text to the contexts of Python's ssl.

Only TLS 1.2 and 1.3, no compression, no renegotiation. A `ReloadingContext` looks at its files when it is
told to and makes a new context when one has changed; connections that are open keep what they have. A
change that cannot be used (a half-written file, a key that does not fit) is told once and passed over: the
old certificate goes on working until the new one does.
"""

import logging
import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from tidelog.model.settings import BrokerSettings

log = logging.getLogger(__name__)

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_STRONG_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


class TlsUnusable(ValueError):
    """Keys or certificates that cannot be used; the text says which and why."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """What TLS on one listener is made from."""

    keystore: str | None = None
    key: str | None = field(default=None, repr=False)
    chain: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    truststore: str | None = None
    trusted: str | None = field(default=None, repr=False)
    client_auth: str = "none"
    protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    ciphers: tuple[str, ...] = ()
    check_hostname: bool = True

    @classmethod
    def of_listener(cls, settings: BrokerSettings, listener: str) -> "TlsSettings":
        def text(name: str) -> str | None:
            return cast("str | None", settings.for_listener(listener, name)) or None

        def texts(name: str) -> tuple[str, ...]:
            return cast("tuple[str, ...] | None", settings.for_listener(listener, name)) or ()

        return cls(
            text("ssl.keystore.location"),
            text("ssl.keystore.key"),
            text("ssl.keystore.certificate.chain"),
            text("ssl.key.password"),
            text("ssl.truststore.location"),
            text("ssl.truststore.certificates"),
            text("ssl.client.auth") or "none",
            texts("ssl.enabled.protocols"),
            texts("ssl.cipher.suites"),
            text("ssl.endpoint.identification.algorithm") == "https",
        )

    def stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Tells whether a file has changed."""
        return tuple(_stamp(path) for path in (self.keystore, self.truststore))


def server_context(tls: TlsSettings) -> ssl.SSLContext:
    """What clients are met with; raises TlsUnusable."""
    context = _context(tls, ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    if tls.keystore is None and tls.key is None:
        raise TlsUnusable("ssl.keystore.location is not set")
    context.verify_mode = _CLIENT_AUTH[tls.client_auth]
    if tls.client_auth != "none" and tls.truststore is None and tls.trusted is None:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    return context


def client_context(tls: TlsSettings) -> ssl.SSLContext:
    """What other brokers are connected to with; raises TlsUnusable."""
    context = _context(tls, ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.check_hostname
    if tls.truststore is None and tls.trusted is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


def _context(tls: TlsSettings, protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    versions = [_VERSIONS[name] for name in tls.protocols]
    if not versions:
        raise TlsUnusable("ssl.enabled.protocols names none")
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_COMPRESSION
    try:
        context.set_ciphers(":".join(map(_cipher, tls.ciphers)) if tls.ciphers else _STRONG_CIPHERS)
    except ssl.SSLError as fault:
        raise TlsUnusable(
            f"ssl.cipher.suites has none that OpenSSL knows: {', '.join(tls.ciphers)}"
        ) from fault
    # An empty password: without one OpenSSL would ask the terminal.
    password = tls.key_password or ""
    try:
        if tls.key is not None:
            with _in_memory(f"{tls.key}\n{tls.chain or ''}\n") as path:
                context.load_cert_chain(path, password=password)
        elif tls.keystore is not None:
            context.load_cert_chain(tls.keystore, password=password)
    except (OSError, ValueError) as fault:
        where = tls.keystore if tls.key is None else "ssl.keystore.key"
        raise TlsUnusable(f"the key and certificate in {where} cannot be used: {_reason(fault)}") from fault
    try:
        if tls.trusted is not None:
            context.load_verify_locations(cadata=tls.trusted)
        elif tls.truststore is not None:
            context.load_verify_locations(cafile=tls.truststore)
    except (OSError, ValueError) as fault:
        where = tls.truststore if tls.trusted is None else "ssl.truststore.certificates"
        raise TlsUnusable(f"the certificates in {where} cannot be used: {_reason(fault)}") from fault
    return context


class ReloadingContext:
    """The context of the moment."""

    def __init__(self, tls: TlsSettings, make: Callable[[TlsSettings], ssl.SSLContext]) -> None:
        self._tls = tls
        self._make = make
        self._stamps = tls.stamps()
        self._reported = ""
        self.context = make(tls)

    def __repr__(self) -> str:
        return f"<ReloadingContext {self._tls!r}>"

    def refresh(self, tls: TlsSettings | None = None) -> bool:
        """Make another context if a file or a setting has changed; whether there is one now."""
        wanted = self._tls if tls is None else tls
        stamps = wanted.stamps()
        if wanted == self._tls and stamps == self._stamps:
            return False
        try:
            context = self._make(wanted)
        except TlsUnusable as fault:
            if self._reported != str(fault):
                self._reported = str(fault)
                log.warning("the certificates from before stay in use: %s", fault)
            return False
        self.context, self._tls, self._stamps, self._reported = context, wanted, stamps, ""
        log.info("TLS was set up again: its files or settings have changed")
        return True


def _cipher(name: str) -> str:
    """OpenSSL's name of a suite: TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 → ECDHE-RSA-AES128-GCM-SHA256."""
    if not name.startswith("TLS_") or "_WITH_" not in name:
        return name
    exchange, _, cipher = name[len("TLS_") :].partition("_WITH_")
    cipher = cipher.replace("AES_128", "AES128").replace("AES_256", "AES256")
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305").replace("_CBC_SHA", "_SHA")
    joined = cipher if exchange == "RSA" else f"{exchange}_{cipher}"
    return joined.replace("_", "-")


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    """Text under a path, since ssl reads keys from files alone; it never reaches a disk."""
    descriptor = os.memfd_create("tidelog-key", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _stamp(path: str | None) -> tuple[int, int, int] | None:
    if path is None:
        return None
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _reason(fault: OSError | ValueError) -> str:
    if isinstance(fault, ssl.SSLError):
        return str(fault.reason or fault)
    return str(getattr(fault, "strerror", None) or fault)
