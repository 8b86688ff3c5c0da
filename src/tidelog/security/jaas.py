"""A line of JAAS, as `sasl.jaas.config` has it: `<login module> required name="value" …;`.

Only the options are read; which module is meant follows from the mechanism.
"""

import re

_OPTION = re.compile(
    r"""([A-Za-z0-9_.\-@+]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))"""
)
USER_PREFIX = "user_"


def parse_options(line: str) -> dict[str, str]:
    """The options of a line; what is no option is passed over."""
    options: dict[str, str] = {}
    for match in _OPTION.finditer(line):
        name, quoted, apostrophed, bare = match.groups()
        text = next(value for value in (quoted, apostrophed, bare) if value is not None)
        options[name] = text if bare is not None else re.sub(r"\\(.)", r"\1", text)
    return options


def plain_users(line: str) -> dict[str, str]:
    """The users of PLAIN and their passwords: `user_alice="…"`."""
    return {
        name[len(USER_PREFIX) :]: value
        for name, value in parse_options(line).items()
        if name.startswith(USER_PREFIX) and len(name) > len(USER_PREFIX)
    }
