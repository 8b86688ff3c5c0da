"""From a client's certificate to the name of a user: `ssl.principal.mapping.rules` (KIP-371).

A distinguished name is written as Java writes it (RFC 2253): the most particular part first, `CN=…,OU=…,O=…`.
A rule is `DEFAULT`, the whole name, or `RULE:pattern/replacement/[LU]`: the pattern must match all of the
name, `$1` in the replacement stands for its groups, L and U turn the result into lower or upper case. The
first rule that fits counts; a name that none fits gets nobody in.

Patterns are Python's, which are Java's for all that names need.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

#: the short names of RFC 2253, by those that OpenSSL uses
_SHORT_NAMES = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,\s*|$)")
_REFERENCE = re.compile(r"\\(.)|\$(\d+)")


class MappingRule(NamedTuple):
    """One rule; no pattern stands for DEFAULT."""

    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """The user's name, or None where the rule does not fit."""
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        result = _REFERENCE.sub(lambda found: _referenced(found, match), self.replacement)
        return {"L": result.lower(), "U": result.upper()}.get(self.case, result)


def _referenced(found: re.Match[str], match: re.Match[str]) -> str:
    if found[1] is not None:
        return found[1]
    digits = found[2]
    rest = ""
    # `$12` with fewer than 12 groups is group 1 and a 2, as in Java.
    while int(digits) > (match.re.groups) and len(digits) > 1:
        digits, rest = digits[:-1], digits[-1] + rest
    if int(digits) > match.re.groups:
        return found[0]
    return (match[int(digits)] or "") + rest


def parse_rules(text: str) -> tuple[MappingRule, ...]:
    """Read the setting; raises ValueError with a sentence."""
    rules = []
    position = 0
    while position < len(text):
        match = _RULE.match(text, position)
        if match is None or match.end() == position:
            raise ValueError(f"ssl.principal.mapping.rules cannot be read from {text[position:]!r} on")
        try:
            pattern = None if match[1] else re.compile(match[2])
        except re.error as fault:
            raise ValueError(
                f"ssl.principal.mapping.rules: {match[2]!r} is not a pattern: {fault}"
            ) from fault
        rules.append(MappingRule(pattern, match[3] or "", match[4] or ""))
        position = match.end()
    return tuple(rules)


def user_name(distinguished_name: str, rules: Sequence[MappingRule]) -> str | None:
    """The user that a distinguished name stands for; None where no rule fits."""
    for rule in rules:
        found = rule.apply(distinguished_name)
        if found is not None:
            return found
    return None


def distinguished_name(subject: Sequence[Sequence[tuple[str, str]]]) -> str:
    """The subject of a certificate, as `ssl` gives it, in the form of RFC 2253."""
    parts = []
    for attributes in reversed(subject):
        parts.append("+".join(f"{_attribute(name)}={_escaped(value)}" for name, value in attributes))
    return ",".join(parts)


def certificate_name(certificate: dict[str, Any] | None) -> str | None:
    """The distinguished name of a client's certificate; None where it has shown none."""
    if not certificate:
        return None
    return distinguished_name(certificate.get("subject", ()))


def _attribute(name: str) -> str:
    return _SHORT_NAMES.get(name, name)


def _escaped(value: str) -> str:
    text = re.sub(r'([,+"\\<>;])', r"\\\1", value)
    if text[:1] in (" ", "#"):
        text = "\\" + text
    if text.endswith(" ") and not text.endswith("\\ "):
        text = text[:-1] + "\\ "
    return text
