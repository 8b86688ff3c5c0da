"""What a change writes, or why it is refused: decided against the state, without writing anything.

Each method of `Decisions` returns a `Change`, the records and the answer. Whoever may write puts them into
the topic in one transaction, and they take effect when they are read back from there. A change that is
decided again, because nobody knows whether it was written, finds itself done and writes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidelog.registry import limits, records, settings_scope, subjects
from tidelog.registry.compatibility import DEFAULT_LEVEL, Earlier, incompatibilities
from tidelog.registry.entities import Content, Reference, SchemaVersion
from tidelog.registry.faults import (
    CONTEXT_NOT_EMPTY,
    ID_DOES_NOT_MATCH,
    REFERENCE_EXISTS,
    SUBJECT_NOT_SOFT_DELETED,
    SUBJECT_SOFT_DELETED,
    VERSION_NOT_SOFT_DELETED,
    VERSION_SOFT_DELETED,
    BadSchema,
    Incompatible,
    RegistryFault,
    invalid_schema,
    not_permitted,
    schema_not_found,
    subject_not_found,
    version_not_found,
)
from tidelog.registry.formats.parsed import STRICT, Parsed, Referenced
from tidelog.registry.formats.parsing import Parser
from tidelog.registry.records import StoredRecord
from tidelog.registry.settings_scope import FORWARD, IMPORT, LEVEL_FIELD, READONLY, READONLY_OVERRIDE
from tidelog.registry.state import State
from tidelog.registry.submitted import LATEST, NUMBER_MAX, Submitted

_REFERENCE_DEPTH_MAX = 20


@dataclass(frozen=True, slots=True)
class Change:
    """What to write, and what to answer when it is written."""

    records: tuple[StoredRecord, ...]
    answer: Any


class Decisions:
    """Decides changes, and answers what needs schemas to be read."""

    def __init__(self, state: State, parser: Parser) -> None:
        self.state = state
        self._parser = parser

    # Schemas

    def register(self, subject: str, submitted: Submitted, *, normalize: bool = False) -> Change:
        """A new version, or the one that is there; the answer is a SchemaVersion."""
        self._check_register_mode(subject, submitted)
        config = settings_scope.config_of(self.state, subject)
        everything = self.state.versions(subject, deleted=True)
        active = [each for each in everything if not each.deleted]
        importing = settings_scope.mode_of(self.state, subject) in (IMPORT, FORWARD)
        content = self._content(subject, submitted, active[-1] if active else None, config, importing)
        content, parsed = self._canonical(subject, content, normalize or bool(config.get("normalize")))
        if submitted.version is None:
            found = self._same(active, content, parsed, submitted.schema_id)
            if found is not None:
                return Change((), found)
        if not importing:
            self._check_compatible(subject, config, content, parsed, active)
        version = everything[-1].version + 1 if everything else 1
        if submitted.version is not None:
            if submitted.version != version and not importing:
                raise invalid_schema("Version is not one more than previous version")
            version = submitted.version
        if version > NUMBER_MAX:
            raise not_permitted(f"subject '{subject}' has the last version that there can be")
        schema_id = self._id_for(subject, content, submitted.schema_id)
        made = SchemaVersion(subject, version, schema_id, content)
        context = subjects.parse(subject).context
        written: list[StoredRecord] = []
        if context not in self.state.contexts():
            written.append(records.context_record(context))
        # The same schema, deleted before: its new version takes the old one's place, as in Confluent's.
        written += [
            records.erased_schema(subject, each.version)
            for each in everything
            if each.deleted
            and each.schema_id == schema_id
            and each.version < version
            and not self.state.referrers(subject, each.version, deleted=True)
        ]
        return Change((*written, records.schema_record(made)), made)

    def lookup(
        self, subject: str, submitted: Submitted, *, normalize: bool = False, deleted: bool = False
    ) -> SchemaVersion:
        """The version that is this schema; raises RegistryFault where there is none."""
        versions = self.state.versions(subject, deleted=deleted)
        if not versions:
            raise subject_not_found(subject)
        if submitted.text is None:
            raise invalid_schema("Empty schema")
        config = settings_scope.config_of(self.state, subject)
        content = Content(
            submitted.schema_type,
            submitted.text,
            self._settled(subject, submitted.references),
            submitted.metadata,
            submitted.rule_set,
        )
        content, parsed = self._canonical(subject, content, normalize or bool(config.get("normalize")))
        found = self._same(versions, content, parsed, None)
        if found is None:
            raise schema_not_found()
        return found

    def compatible(
        self, subject: str, submitted: Submitted, version: int | None, *, normalize: bool = False
    ) -> list[str]:
        """Why a schema could not be registered; with a version, judged against that one alone."""
        active = self.state.versions(subject)
        config = settings_scope.config_of(self.state, subject)
        if version is not None:
            active = [self._version(subject, version)]
        content = self._content(subject, submitted, active[-1] if active else None, config, False)
        content, parsed = self._canonical(subject, content, normalize or bool(config.get("normalize")))
        return self._incompatibilities(config, content, parsed, active)

    def parsed(self, schema: SchemaVersion) -> Parsed:
        """A version, read; raises BadSchema."""
        content = schema.content
        references = self._resolved(schema.subject, content.references)
        return self._parser.parse(content.schema_type, content.text, references)

    def _version(self, subject: str, version: int) -> SchemaVersion:
        active = self.state.versions(subject)
        if not active:
            raise subject_not_found(subject)
        found = active[-1] if version == LATEST else self.state.version(subject, version)
        if found is None or found.deleted:
            raise version_not_found(version)
        return found

    def _check_register_mode(self, subject: str, submitted: Submitted) -> None:
        mode = settings_scope.mode_of(self.state, subject)
        if mode in (READONLY, READONLY_OVERRIDE):
            raise not_permitted(f"Subject {subject} is in read-only mode")
        if submitted.schema_id is not None and mode != IMPORT:
            raise not_permitted(f"Subject {subject} is not in import mode")
        if submitted.schema_id is None and mode in (IMPORT, FORWARD):
            raise not_permitted(f"Subject {subject} is not in read-write mode")

    def _content(
        self,
        subject: str,
        submitted: Submitted,
        latest: SchemaVersion | None,
        config: Mapping[str, Any],
        importing: bool,
    ) -> Content:
        """What was sent, with what the latest version and the settings add to it."""
        text, kind, references = submitted.text, submitted.schema_type, submitted.references
        if text is None:
            if latest is None or importing:
                raise invalid_schema("Empty schema")
            text, kind = latest.content.text, latest.content.schema_type
            references = latest.content.references
        metadata, rules = submitted.metadata, submitted.rule_set
        if not importing:
            if metadata is None and latest is not None:
                metadata = latest.content.metadata
            if rules is None and latest is not None:
                rules = latest.content.rule_set
            metadata = settings_scope.merged_metadata(
                config.get("defaultMetadata"), metadata, config.get("overrideMetadata")
            )
            rules = settings_scope.merged_rules(
                config.get("defaultRuleSet"), rules, config.get("overrideRuleSet")
            )
        return Content(kind, text, self._settled(subject, references), metadata, rules)

    def _settled(self, subject: str, references: Sequence[Reference]) -> tuple[Reference, ...]:
        """References with the number of the version that `latest` is now."""
        found = []
        for reference in references:
            if reference.version == LATEST:
                named = subjects.beside(subject, reference.subject)
                active = self.state.versions(named)
                if not active:
                    raise invalid_schema(f'No schema reference found for subject "{named}" and version -1')
                reference = reference._replace(version=active[-1].version)
            found.append(reference)
        return tuple(found)

    def _resolved(self, subject: str, references: Sequence[Reference]) -> list[Referenced]:
        """Every schema that is referred to, those that it refers to before it."""
        found: dict[tuple[str, str, int], Referenced] = {}

        def add(owner: str, rows: Sequence[Reference], depth: int) -> None:
            if depth > _REFERENCE_DEPTH_MAX:
                raise invalid_schema(f"references are more than {_REFERENCE_DEPTH_MAX} levels deep")
            for row in rows:
                named = subjects.beside(owner, row.subject)
                key = (row.name, named, row.version)
                if key in found:
                    continue
                schema = self.state.version(named, row.version)
                if schema is None:
                    raise invalid_schema(
                        f'No schema reference found for subject "{named}" and version {row.version}'
                    )
                add(named, schema.content.references, depth + 1)
                found[key] = Referenced(row.name, schema.content.text, named, row.version)
                if len(found) > limits.REFERENCES_MAX:
                    raise invalid_schema(f"a schema has at most {limits.REFERENCES_MAX} references")

        add(subject, references, 0)
        # Two ways to the same schema under one name are one.
        return list({(each.name, each.text): each for each in found.values()}.values())

    def _canonical(self, subject: str, content: Content, normalize: bool) -> tuple[Content, Parsed]:
        try:
            parsed = self._parser.parse(
                content.schema_type, content.text, self._resolved(subject, content.references)
            )
            text = parsed.normalized() if normalize else parsed.text
        except BadSchema as fault:
            raise invalid_schema(f"Invalid schema of type {content.schema_type[:40]}: {fault}") from fault
        references = content.references
        if normalize:
            references = tuple(sorted(references))
        return replace(content, text=text, references=references), parsed

    def _same(
        self, versions: Sequence[SchemaVersion], content: Content, parsed: Parsed, schema_id: int | None
    ) -> SchemaVersion | None:
        """The latest version with this content; metadata and rules count where the request has them."""
        for each in reversed(versions):
            if schema_id is not None and each.schema_id != schema_id:
                continue
            other = each.content
            extras = (content.metadata in (None, other.metadata)) and (
                content.rule_set in (None, other.rule_set)
            )
            if extras and content.same_but_extras(other):
                return each
            if extras and content.schema_type == other.schema_type and content.references == other.references:
                try:
                    if self.parsed(each).identity() == parsed.identity():
                        return each
                except (BadSchema, RegistryFault):
                    continue
        return None

    def _check_compatible(
        self,
        subject: str,
        config: Mapping[str, Any],
        content: Content,
        parsed: Parsed,
        active: Sequence[SchemaVersion],
    ) -> None:
        messages = self._incompatibilities(config, content, parsed, active)
        if messages:
            raise Incompatible(
                "Schema being registered is incompatible with an earlier schema for subject"
                f' "{subject}", details: [{", ".join(messages)}]',
                messages,
            )

    def _incompatibilities(
        self,
        config: Mapping[str, Any],
        content: Content,
        parsed: Parsed,
        active: Sequence[SchemaVersion],
    ) -> list[str]:
        group = config.get("compatibilityGroup")
        if group:
            wanted = _property(content, group)
            active = [each for each in active if _property(each.content, group) == wanted]
        level, policy = str(config[LEVEL_FIELD]), str(config.get("compatibilityPolicy", STRICT))
        counted = active if level.endswith("_TRANSITIVE") else active[-1:]
        try:
            earlier = [Earlier(each.version, self.parsed(each)) for each in counted if level != "NONE"]
            return incompatibilities(level, policy, parsed, earlier)
        except BadSchema as fault:
            raise invalid_schema(f"the schemas cannot be compared: {fault}") from fault

    def _id_for(self, subject: str, content: Content, wanted: int | None) -> int:
        context = subjects.parse(subject).context
        known = self.state.id_of(context, content)
        if wanted is None:
            schema_id = known if known is not None else self.state.highest_id(context) + 1
            if schema_id > NUMBER_MAX:
                raise not_permitted("every id has been given")
            return schema_id
        there = self.state.of_id(context, wanted)
        if there and there[0].content.digest() != content.digest():
            raise RegistryFault(ID_DOES_NOT_MATCH, f"Overwrite new schema with id {wanted} is not permitted.")
        return wanted

    # Deleting

    def delete_version(self, subject: str, version: int, *, permanent: bool) -> Change:
        """The answer is the version's number."""
        self._check_writable(subject)
        everything = self.state.versions(subject, deleted=True)
        if not everything:
            raise subject_not_found(subject)
        if version == LATEST:
            candidates = everything if permanent else self.state.versions(subject)
            found = candidates[-1] if candidates else None
        else:
            found = self.state.version(subject, version)
        if found is None:
            raise version_not_found("latest" if version == LATEST else version)
        if permanent and not found.deleted:
            raise RegistryFault(
                VERSION_NOT_SOFT_DELETED,
                f"Subject '{subject}' Version {found.version} was not deleted first before being permanently"
                " deleted",
            )
        if found.deleted and not permanent:
            raise RegistryFault(
                VERSION_SOFT_DELETED,
                f"Subject '{subject}' Version {found.version} was soft deleted."
                "Set permanent=true to delete permanently",
            )
        self._check_unreferenced(found, permanent)
        if permanent:
            gone = records.erased_schema(subject, found.version)
            return Change((gone, self._remembered(subject)), found.version)
        return Change((records.schema_record(replace(found, deleted=True)),), found.version)

    def delete_subject(self, subject: str, *, permanent: bool) -> Change:
        """The answer is the list of versions."""
        self._check_writable(subject)
        everything = self.state.versions(subject, deleted=True)
        if not everything:
            raise subject_not_found(subject)
        active = [each for each in everything if not each.deleted]
        if permanent and active:
            raise RegistryFault(
                SUBJECT_NOT_SOFT_DELETED,
                f"Subject '{subject}' was not deleted first before being permanently deleted",
            )
        if not active and not permanent:
            raise RegistryFault(
                SUBJECT_SOFT_DELETED,
                f"Subject '{subject}' was soft deleted.Set permanent=true to delete permanently",
            )
        chosen = everything if permanent else active
        own = {each.version for each in everything}
        for each in chosen:
            self._check_unreferenced(each, permanent, beside=(subject, own))
        numbers = [each.version for each in chosen]
        if permanent:
            gone = [records.erased_schema(subject, number) for number in numbers]
            return Change((*gone, self._remembered(subject)), numbers)
        written = [records.deleted_subject(subject, numbers[-1])]
        if self.state.mode(subject) is not None:
            written.append(records.mode_record(subject, None))
        if self.state.config(subject) is not None:
            written.append(records.config_record(subject, None))
        return Change(tuple(written), numbers)

    def delete_context(self, context: str) -> Change:
        if self.state.subjects(f":{context}:", deleted=True) or context == subjects.DEFAULT_CONTEXT:
            raise RegistryFault(CONTEXT_NOT_EMPTY, f"The specified context '{context}' is not empty.")
        if context not in self.state.contexts():
            raise RegistryFault(404, f"Context '{context}' not found.")
        return Change((records.context_record(context, present=False),), None)

    def _remembered(self, subject: str) -> StoredRecord:
        """No id of a schema that is erased is given again, even after compaction."""
        highest = {context: self.state.highest_id(context) for context in self.state.contexts()}
        highest[subjects.parse(subject).context] = self.state.highest_id(subjects.parse(subject).context)
        return records.highest_ids({context: number for context, number in highest.items() if number})

    def _check_writable(self, subject: str) -> None:
        if settings_scope.mode_of(self.state, subject) in (READONLY, READONLY_OVERRIDE):
            raise not_permitted(f"Subject {subject} is in read-only mode")

    def _check_unreferenced(
        self, schema: SchemaVersion, permanent: bool, beside: tuple[str, set[int]] = ("", set())
    ) -> None:
        for each in self.state.referrers(schema.subject, schema.version, deleted=permanent):
            if each.subject == beside[0] and each.version in beside[1]:
                continue
            raise RegistryFault(
                REFERENCE_EXISTS,
                "One or more references exist to the schema {magic=1,keytype=SCHEMA,"
                f"subject={schema.subject},version={schema.version}}}.",
            )

    # Settings and modes

    def set_config(self, subject: str, body: Mapping[str, Any]) -> Change:
        """The answer is what was asked for, as Confluent's is."""
        self._check_writable(subject)
        config = settings_scope.changed_config(self.state.config(subject), body)
        asked = settings_scope.request_form(settings_scope.changed_config({}, body))
        return Change((records.config_record(subject, config),), asked)

    def delete_config(self, subject: str) -> Change:
        self._check_writable(subject)
        present = self.state.config(subject)
        if present is None:
            if subject:
                raise subject_not_found(subject)
            return Change((), {LEVEL_FIELD: DEFAULT_LEVEL})
        return Change((records.config_record(subject, None),), dict(present))

    def set_mode(self, subject: str, mode: str, *, force: bool) -> Change:
        if mode == READONLY_OVERRIDE and subject:
            raise not_permitted("READONLY_OVERRIDE is a mode of the whole registry")
        if mode == IMPORT and not force and settings_scope.mode_of(self.state, subject) != IMPORT:
            parsed = subjects.parse(subject)
            prefix = subject if not parsed.name else ""
            there = (
                bool(self.state.versions(subject))
                if parsed.name
                else bool(self.state.subjects(prefix or subjects.ANY_CONTEXT))
            )
            if there:
                raise not_permitted("Cannot import since found existing subjects")
        return Change((records.mode_record(subject, mode),), {"mode": mode})

    def delete_mode(self, subject: str) -> Change:
        present = self.state.mode(subject)
        if present is None:
            if subject:
                raise subject_not_found(subject)
            return Change((), {"mode": settings_scope.READWRITE})
        return Change((records.mode_record(subject, None),), {"mode": present})


def _property(content: Content, name: str) -> Any:
    return ((content.metadata or {}).get("properties") or {}).get(name)
