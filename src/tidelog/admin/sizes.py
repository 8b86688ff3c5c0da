"""Sizes in words."""


def bytes_text(size_bytes: int | None) -> str | None:
    """A size as a person reads it: 999 B, 1.5 KiB, 20 MiB."""
    if size_bytes is None:
        return None
    if size_bytes < 1024:
        return f"{size_bytes} B"
    size = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}" if size < 100 else f"{size:.0f} {unit}"
    return f"{size / 1024:.1f} TiB"
