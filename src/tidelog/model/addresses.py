"""Addresses as text: `host:port`, with an IPv6 address in brackets, `[::1]:9092`."""

#: listening here is listening everywhere
EVERYWHERE = ("", "0.0.0.0", "::")


def address_text(host: str, port: int) -> str:
    """Host and port as one word that can be taken apart again."""
    return f"{bracketed(host)}:{port}"


def bracketed(host: str) -> str:
    """A host as it stands before a port."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def split_address(text: str, default_port: int) -> tuple[str, int]:
    """Take `host:port` apart; the port may be left out, and a scheme (`PLAINTEXT://`) is tolerated.

    Raises ValueError with a sentence.
    """
    plain = text.rpartition("://")[2]
    if plain.startswith("["):
        host, closed, rest = plain[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r} is not [host]:port")
        port = rest[1:] if rest else str(default_port)
    elif plain.count(":") > 1:
        # Nobody can say whether the last number is a port or belongs to the address.
        raise ValueError(f"{text!r} is an IPv6 address without brackets: write [{plain}]:port")
    else:
        host, colon, port = plain.partition(":")
        port = port if colon else str(default_port)
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65_536:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host, int(port)
