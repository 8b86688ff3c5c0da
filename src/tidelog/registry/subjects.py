"""Subjects and their contexts: `:.context:name`, or a bare name in the default context.

Ids are counted per context. A context without a name (`:.context:`) stands for the context itself, in
settings and modes. `topic_of` says whose rights a subject has.
"""

from typing import NamedTuple

from tidelog.registry.faults import INVALID_SUBJECT, RegistryFault

DEFAULT_CONTEXT = "."
#: of the settings and the mode of the whole registry
GLOBAL = ""
ANY_CONTEXT = ":*:"
SUBJECT_CHARACTERS_MAX = 1_024
_SUFFIXES = ("-key", "-value")
_RESERVED = ("__GLOBAL", "__EMPTY")


class QualifiedSubject(NamedTuple):
    """A subject taken apart."""

    context: str
    name: str

    @property
    def text(self) -> str:
        """As it is kept and shown."""
        return self.name if self.context == DEFAULT_CONTEXT else f":{self.context}:{self.name}"

    @property
    def scopes(self) -> tuple[str, ...]:
        """Where its settings are looked up, the nearest first."""
        found = [self.text]
        if self.context != DEFAULT_CONTEXT:
            found.append(f":{self.context}:")
        return (*dict.fromkeys(found), GLOBAL)


def parse(text: str) -> QualifiedSubject:
    """Take a subject apart; the default context may be written out."""
    if text.startswith(":.") and (end := text.find(":", 1)) > 0:
        return QualifiedSubject(text[1:end], text[end + 1 :])
    return QualifiedSubject(DEFAULT_CONTEXT, text)


def normal(text: str) -> str:
    """The one spelling of a subject."""
    return parse(text).text


def checked(text: str) -> str:
    """The same for a subject that is to be written to; raises RegistryFault."""
    subject = parse(text)
    bad = (
        not subject.name
        or len(text) > SUBJECT_CHARACTERS_MAX
        or any(ord(character) < 32 or ord(character) == 127 for character in text)
        or subject.name in _RESERVED
        or text == ANY_CONTEXT
    )
    if bad:
        raise RegistryFault(INVALID_SUBJECT, f"The specified subject '{text[:200]}' is not a valid subject.")
    return subject.text


def beside(subject: str, reference: str) -> str:
    """The subject that a reference in a schema of `subject` means: of its context unless it names one."""
    if reference.startswith(":."):
        return normal(reference)
    return QualifiedSubject(parse(subject).context, reference).text


def topic_of(subject: str) -> str:
    """The topic whose rights a subject has: its name without -key or -value."""
    name = parse(subject).name
    for suffix in _SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name
