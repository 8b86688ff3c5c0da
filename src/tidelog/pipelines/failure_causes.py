"""Why a query failed, as one sentence, out of what Spark says about it.

Spark's text has the cause once, between the classes that it was wrapped in, a stack of Java, one of Python or
two, and the plan of the query. The whole text stays in `tidelog pipeline status`.
"""

import re

from tidelog.pipelines.spark_analyser import spark_sentence

#: conditions that say no more than that something inside failed
_WRAPPERS = (
    "STREAM_FAILED",
    "FAILED_EXECUTE_UDF",
    "TASK_WRITE_FAILED",
    "PYTHON_DATA_SOURCE_ERROR",
    "UDF_USER",
)
_CONDITION = re.compile(r"\[(?P<name>[A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\] ")
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"^(?P<class>[A-Za-z_][\w.]*)(?:: (?P<words>.*))?$")
#: classes whose name adds nothing to what they say
_PLAIN = (
    "ValueError",
    "RuntimeError",
    "Exception",
    "ClientFault",
    "BadOption",
    "BadRow",
    "Refusal",
    "LinkFault",
)
_JAVA_CLASS = re.compile(r"\b(?:java|scala|org)\.[\w.$]+(?:Exception|Error): ")
_TASK = re.compile(r"Job aborted due to stage failure: .*?\(\S+ executor [^)]*\): ", re.DOTALL)
CHARACTERS_MAX = 400


def cause_of(failure: str) -> str:
    """The cause in one sentence."""
    text = failure.partition("\n=== Streaming Query ===")[0].partition("\nJVM stacktrace")[0]
    text = text.partition("\nDriver stacktrace")[0]
    sentence = _raised(text) or _condition(text) or _first_line(text)
    return sentence if len(sentence) <= CHARACTERS_MAX else f"{sentence[: CHARACTERS_MAX - 1]}…"


def _raised(text: str) -> str | None:
    """What Python raised, by the last traceback there is."""
    _, found, block = text.rpartition(_TRACEBACK)
    if not found:
        return None
    for line in block.splitlines()[1:]:
        if not line.strip() or line[0].isspace():
            continue
        raised = _RAISED.match(line.rstrip())
        if raised is None:
            return None
        words = raised["words"] or ""
        name = raised["class"].rpartition(".")[2]
        if _CONDITION.search(words) or name in ("PythonException", "Py4JJavaError"):
            return _condition(block[block.index(line) :])
        return words if words and name in _PLAIN else f"{name}: {words}".rstrip(": ")
    return None


def _condition(text: str) -> str | None:
    """What Spark calls by a name of its own; the innermost of several."""
    found = [one for one in _CONDITION.finditer(text) if not one["name"].startswith(_WRAPPERS)]
    if not found:
        return None
    return spark_sentence(text[found[-1].start() :])[0]


def _first_line(text: str) -> str:
    plain = _JAVA_CLASS.sub("", _TASK.sub("", re.sub(r"^\[STREAM_FAILED\].*?exception: ", "", text)))
    return next((line.strip() for line in plain.splitlines() if line.strip()), "there is no reason given")
