"""Where a key lives in ZooKeeper.

    key                  znode below the chroot
    controller           /controller
    changes              /changes
    changes/17           /changes:/17
    partitions/orders/0  /partitions:/orders:/0

A folder is a znode of its own, marked by a colon, so that a key may have the name of a folder, versions and
existence of a key are those of its znode, and an ephemeral key is never in the way of children. Whatever
ZooKeeper does not allow in a name is written as in a URL (`%2E`); names that begin with `%` and are no such
escape (`%sessions`) are the store's own and not keys.
"""

from urllib.parse import quote, unquote

FOLDER_MARK = ":"
SESSIONS = "%sessions"
COMMITS = "%commits"
# Printable characters that need no escape besides letters, digits and `_.-~`.
_SAFE = "!#$&'()*+,;=?@[]^{}|<> "


def escape(component: str) -> str:
    """One part of a key as the name of a znode."""
    if not component:
        return "%"
    if component in (".", ".."):
        return component.replace(".", "%2E")
    if component == "zookeeper":
        # ZooKeeper keeps its own nodes under this name.
        return "%7Aookeeper"
    return quote(component, safe=_SAFE)


def unescape(name: str) -> str:
    return "" if name == "%" else unquote(name)


def folder_path(root: str, folder: str) -> str:
    """The znode of a folder of keys (`topics/`, or empty for the top)."""
    parts = folder.split("/")[:-1]
    return (root + "".join(f"/{escape(part)}{FOLDER_MARK}" for part in parts)) or "/"


def key_path(root: str, key: str) -> str:
    """The znode of a key."""
    cut = key.rfind("/") + 1
    folder = folder_path(root, key[:cut])
    return f"{folder.rstrip('/')}/{escape(key[cut:])}"


def folder_of(path: str) -> str:
    """The znode above."""
    return path[: path.rfind("/")] or "/"


def folders_above(root: str, path: str) -> list[str]:
    """The folders that must exist for a znode, the topmost first, without the root."""
    found = []
    while (path := folder_of(path)) != (root or "/"):
        found.append(path)
    return found[::-1]


def is_folder(name: str) -> bool:
    return name.endswith(FOLDER_MARK)


def is_own(name: str) -> bool:
    """Whether a znode at the top is the store's or ZooKeeper's own, not a key or folder."""
    return name in (SESSIONS, COMMITS, "zookeeper")
