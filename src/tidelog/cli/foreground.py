"""What the commands share that serve in the foreground: options, and how they end."""

import os
import ssl
import threading
from collections.abc import Callable
from typing import Any

import click

from tidelog.cli.errors import CommandError

Command = Callable[..., Any]

EXIT_WITH_STDIN_OPTION = click.option(
    "--exit-with-stdin", is_flag=True, help="Stop when standard input ends, as 'tidelog up' needs."
)
_LOG_FORMAT_OPTION = click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How to log."
)
_LOG_LEVEL_OPTION = click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="What to log, to standard error.",
)
_TLS_KEY_OPTION = click.option(
    "--tls-key",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="The key of the certificate.",
)


def log_options(command: Command) -> Command:
    """The command receives `log_format` and `log_level`."""
    return _LOG_FORMAT_OPTION(_LOG_LEVEL_OPTION(command))


def tls_options(what: str) -> Callable[[Command], Command]:
    """The command receives `tls_certificate` and `tls_key`; `what` is served with them."""
    certificate = click.option(
        "--tls-certificate",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help=f"Serve {what} with this certificate (PEM).",
    )
    return lambda command: certificate(_TLS_KEY_OPTION(command))


def both_or_none(certificate: str | None, key: str | None) -> tuple[str, str] | None:
    """The two files of TLS; one alone is a mistake."""
    if (certificate is None) != (key is None):
        raise click.UsageError("--tls-certificate and --tls-key go together")
    return None if certificate is None or key is None else (certificate, key)


def tls_context(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    """What a server speaks TLS with; None without a certificate."""
    files = both_or_none(certificate, key)
    if files is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(*files)
    except (OSError, ssl.SSLError) as fault:
        raise CommandError(
            f"the certificate {certificate} cannot be used: {fault}",
            "both files are PEM, and belong together",
        ) from fault
    return context


def end_with_stdin() -> None:
    """End with the process that started us, however it ends: its end of the pipe closes."""
    threading.Thread(target=_wait_for_end, daemon=True).start()


def _wait_for_end() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)
