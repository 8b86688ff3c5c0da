"""What the topic says, in memory: only `apply`, of a record in the log, changes it.

Readers are other threads than the one that applies: they take `lock`, as every public method does by itself.
Applying the same records in the same order gives the same state, so every instance agrees.
"""

import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from tidelog.registry import records, subjects
from tidelog.registry.entities import Content, SchemaVersion
from tidelog.registry.records import UnreadableRecord

_log = logging.getLogger("tidelog.registry")

Place = tuple[str, int]


class State:
    """Subjects, ids, settings and modes."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._subjects: dict[str, dict[int, SchemaVersion]] = {}
        #: by context: where an id is
        self._places: dict[str, dict[int, dict[Place, None]]] = {}
        #: by context: the id of a content, by its digest
        self._digests: dict[str, dict[bytes, int]] = {}
        self._highest: dict[str, int] = {}
        self._referrers: dict[Place, set[Place]] = {}
        self._configs: dict[str, Mapping[str, Any]] = {}
        self._modes: dict[str, str] = {}
        self._contexts: set[str] = {subjects.DEFAULT_CONTEXT}
        self.unreadable = 0

    def __repr__(self) -> str:
        return f"<State subjects={len(self._subjects)} contexts={len(self._contexts)}>"

    # Applying

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Take a record of the log in; one that cannot be read is told and passed over."""
        with self.lock:
            try:
                self._apply(key, value)
            except (ValueError, TypeError, AttributeError) as fault:
                # A value of another kind than it must be: whoever may write to the topic wrote it.
                self.unreadable += 1
                _log.warning("a record in the topic cannot be read: %s", str(fault)[:200])

    def _apply(self, key: bytes | None, value: bytes | None) -> None:
        kind, named, body = records.decode(key, value)
        subject = named.get("subject")
        subject = subjects.GLOBAL if subject is None else str(subject)
        if kind == records.SCHEMA:
            try:
                version = int(named["version"])
            except (KeyError, TypeError, ValueError) as fault:
                raise UnreadableRecord("a schema's key without a version") from fault
            self._put(subject, version, None if body is None else records.read_schema(body))
        elif kind == records.CONFIG:
            _keep(self._configs, subject, None if body is None else _without_subject(body))
        elif kind == records.MODE:
            _keep(self._modes, subject, None if body is None else str(body.get("mode")))
        elif kind == records.DELETE_SUBJECT:
            self._delete_up_to(subject, 0 if body is None else int(body.get("version") or 0))
        elif kind == records.CLEAR_SUBJECT:
            for version in list(self._subjects.get(subject, ())):
                self._put(subject, version, None)
        elif kind == records.CONTEXT:
            self._keep_context(str(named.get("context")), body is not None)
        elif kind == records.NOOP:
            for context, highest in ((body or {}).get("highestIds") or {}).items():
                self._highest[context] = max(self._highest.get(context, 0), int(highest))
        else:
            raise UnreadableRecord(f"no keytype {kind[:40]!r} is known here")

    def _put(self, subject: str, version: int, schema: SchemaVersion | None) -> None:
        place = (subject, version)
        versions = self._subjects.setdefault(subject, {})
        previous = versions.pop(version, None)
        context = subjects.parse(subject).context
        if previous is not None:
            self._forget(context, place, previous)
        if schema is not None:
            versions[version] = schema
            self._contexts.add(context)
            self._places.setdefault(context, {}).setdefault(schema.schema_id, {})[place] = None
            self._digests.setdefault(context, {}).setdefault(schema.content.digest(), schema.schema_id)
            self._highest[context] = max(self._highest.get(context, 0), schema.schema_id)
            for reference in schema.content.references:
                used = (subjects.beside(subject, reference.subject), reference.version)
                self._referrers.setdefault(used, set()).add(place)
        if not versions:
            del self._subjects[subject]

    def _forget(self, context: str, place: Place, schema: SchemaVersion) -> None:
        places = self._places[context][schema.schema_id]
        places.pop(place, None)
        if not places:
            del self._places[context][schema.schema_id]
            digests = self._digests[context]
            if digests.get(schema.content.digest()) == schema.schema_id:
                del digests[schema.content.digest()]
        for reference in schema.content.references:
            used = (subjects.beside(place[0], reference.subject), reference.version)
            referrers = self._referrers.get(used, set())
            referrers.discard(place)
            if not referrers:
                self._referrers.pop(used, None)

    def _delete_up_to(self, subject: str, version: int) -> None:
        for found in list(self._subjects.get(subject, {}).values()):
            if found.version <= version and not found.deleted:
                gone = SchemaVersion(found.subject, found.version, found.schema_id, found.content, True)
                self._put(subject, found.version, gone)

    def _keep_context(self, context: str, present: bool) -> None:
        if present:
            self._contexts.add(context)
        elif context != subjects.DEFAULT_CONTEXT:
            self._contexts.discard(context)

    # Asking

    def contexts(self) -> list[str]:
        with self.lock:
            return sorted(self._contexts)

    def subjects(self, prefix: str = "", *, deleted: bool = False, deleted_only: bool = False) -> list[str]:
        """Subjects that begin with a prefix, `:*:` for those of any context."""
        with self.lock:
            return sorted(
                subject
                for subject, versions in self._subjects.items()
                if _has_prefix(subject, prefix) and _wanted(versions, deleted, deleted_only)
            )

    def versions(self, subject: str, *, deleted: bool = False) -> list[SchemaVersion]:
        """The versions of a subject in their order; with `deleted`, those that are softly deleted too."""
        with self.lock:
            found = self._subjects.get(subject, {})
            return [found[number] for number in sorted(found) if deleted or not found[number].deleted]

    def version(self, subject: str, version: int) -> SchemaVersion | None:
        """A version, deleted or not."""
        with self.lock:
            return self._subjects.get(subject, {}).get(version)

    def of_id(self, context: str, schema_id: int) -> list[SchemaVersion]:
        """Every version that has an id in a context, deleted ones included."""
        with self.lock:
            places = self._places.get(context, {}).get(schema_id, {})
            return [self._subjects[subject][version] for subject, version in places]

    def of_guid(self, digest: bytes) -> Iterator[tuple[str, int]]:
        """Context and id of every schema with a guid."""
        with self.lock:
            found = [
                (context, digests[digest]) for context, digests in self._digests.items() if digest in digests
            ]
        yield from found

    def id_of(self, context: str, content: Content) -> int | None:
        """The id that a content has in a context."""
        with self.lock:
            return self._digests.get(context, {}).get(content.digest())

    def highest_id(self, context: str) -> int:
        with self.lock:
            return self._highest.get(context, 0)

    def referrers(self, subject: str, version: int, *, deleted: bool = False) -> list[SchemaVersion]:
        """Versions that refer to a version."""
        with self.lock:
            found = [
                self._subjects[name][number]
                for name, number in sorted(self._referrers.get((subject, version), ()))
            ]
        return [each for each in found if deleted or not each.deleted]

    def config(self, subject: str) -> Mapping[str, Any] | None:
        """The settings that were made for exactly this."""
        with self.lock:
            return self._configs.get(subject)

    def mode(self, subject: str) -> str | None:
        with self.lock:
            return self._modes.get(subject)

    def counts(self) -> dict[str, int]:
        """What the metrics say."""
        with self.lock:
            versions = [each for found in self._subjects.values() for each in found.values()]
            return {
                "subjects": sum(_wanted(found, False, False) for found in self._subjects.values()),
                "versions": sum(not each.deleted for each in versions),
                "deleted_versions": sum(each.deleted for each in versions),
                "ids": sum(len(found) for found in self._places.values()),
            }


def _keep(kept: dict[str, Any], subject: str, value: Any) -> None:
    if value is None:
        kept.pop(subject, None)
    else:
        kept[subject] = value


def _without_subject(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "subject"}


def _has_prefix(subject: str, prefix: str) -> bool:
    if prefix.startswith(subjects.ANY_CONTEXT):
        return subjects.parse(subject).name.startswith(prefix[len(subjects.ANY_CONTEXT) :])
    wanted, found = subjects.parse(prefix), subjects.parse(subject)
    return wanted.context == found.context and found.name.startswith(wanted.name)


def _wanted(versions: Mapping[int, SchemaVersion], deleted: bool, deleted_only: bool) -> bool:
    """A subject is deleted once all its versions are."""
    if deleted_only:
        return all(each.deleted for each in versions.values())
    return deleted or any(not each.deleted for each in versions.values())
