"""Writes the pages of the lab's scenarios from a run, so that every figure on them was measured.

    tidelog lab all --json > results.json
    python docs/lab/write_pages.py results.json

Each scenario of the results gets `docs/lab/scenarios/<name>.md`, and its row in the table of `index.md`
between the two marks. Scenarios that are not in the results keep their pages.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from tidelog.lab import catalog
from tidelog.lab.scenario import Scenario, Step

HERE = Path(__file__).parent
PAGES = HERE / "scenarios"
INDEX = HERE / "index.md"
TABLE = re.compile(r"(?<=<!-- scenarios: begin -->\n).*?(?=<!-- scenarios: end -->)", re.DOTALL)
NOTE = "<!-- written by docs/lab/write_pages.py from a run: change the scenario, not this page -->"


def page(scenario: Scenario, result: dict[str, Any]) -> str:
    """The page of one scenario."""
    brokers = "one broker" if scenario.brokers == 1 else f"{scenario.brokers} brokers"
    parts = [
        f"# {scenario.title}",
        NOTE,
        f"`tidelog lab run {scenario.name}` · about {scenario.minutes} minutes with you,"
        f" {result['seconds']:.0f} seconds without · {brokers} · [all scenarios](../index.md)",
        "You will learn:",
        "\n".join(f"- {item}" for item in scenario.learn),
    ]
    for number, (step, shown) in enumerate(zip(scenario.steps, result["steps"], strict=True), 1):
        parts += step_parts(number, step, shown)
    parts.append(f"**Remember:** {sentence(scenario.summary)}")
    parts.append(neighbours(scenario.name))
    return "\n\n".join(parts) + "\n"


def step_parts(number: int, step: Step, result: dict[str, Any]) -> list[str]:
    """The paragraphs of one step."""
    parts = [
        f"## {number}. {step.title}",
        escaped(step.narration),
        f"**Action:** {sentence(step.action)}<br>\n**Prediction:** {sentence(step.prediction)}",
        f"**Observed** in {result['seconds']:.1f} s:",
    ]
    parts += [shown_text(item) for item in result["shown"]]
    parts.append("\n".join(f"- ✔ {escaped(check['claim'])}" for check in result["checks"]))
    return parts


def shown_text(item: Any) -> str:
    """A sentence, a table or lines, as Markdown."""
    if isinstance(item, str):
        return escaped(item[:1].upper() + item[1:])
    if "lines" in item:
        return "```text\n" + "\n".join(item["lines"]) + "\n```"
    rows = [item["columns"], ["---"] * len(item["columns"]), *item["rows"]]
    table = "\n".join("| " + " | ".join(cell(value) for value in row) + " |" for row in rows)
    return f"*{escaped(item['title'])}*\n\n{table}" if item["title"] else table


def cell(value: Any) -> str:
    """The text of one cell."""
    if value is None:
        return "–"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return escaped(str(value)).replace("|", "\\|")


def escaped(text: str) -> str:
    """Text that Markdown leaves as it is."""
    return re.sub(r"([*_<>\[\]`])", r"\\\1", text)


def sentence(text: str) -> str:
    """With one full stop at its end."""
    return escaped(text.rstrip(".")) + "."


def neighbours(name: str) -> str:
    """Links to the scenarios before and after this one in the tour."""
    names = catalog.names()
    place = names.index(name)
    links = []
    if place > 0:
        links.append(f"← [{names[place - 1]}]({names[place - 1]}.md)")
    if place + 1 < len(names):
        links.append(f"[{names[place + 1]}]({names[place + 1]}.md) →")
    return " · ".join(links)


def table(results: dict[str, dict[str, Any]]) -> str:
    """The rows of the index; what this run did not have keeps its seconds."""
    known = dict(re.findall(r"^\| \[(\S+)\].*\| (\d+) s \|$", INDEX.read_text(), re.MULTILINE))
    lines = ["| scenario | about | minutes with you | alone |", "|---|---|---|---|"]
    for scenario in catalog.all_scenarios():
        seconds = known.get(scenario.name)
        if scenario.name in results:
            seconds = f"{results[scenario.name]['seconds']:.0f}"
        alone = "not run yet" if seconds is None else f"{seconds} s"
        link = f"[{scenario.name}](scenarios/{scenario.name}.md)"
        lines.append(f"| {link} | {scenario.title} | {scenario.minutes} | {alone} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    found = json.loads(Path(sys.argv[1]).read_text())
    results = {row["scenario"]: row for row in found if row["outcome"] == "held"}
    PAGES.mkdir(exist_ok=True)
    for name, result in results.items():
        (PAGES / f"{name}.md").write_text(page(catalog.load(name), result))
    rows = table(results)
    INDEX.write_text(TABLE.sub(lambda _: rows, INDEX.read_text()))
    left_out = [row["scenario"] for row in found if row["outcome"] != "held"]
    print(f"{len(results)} pages written" + (f"; not held: {', '.join(left_out)}" if left_out else ""))


if __name__ == "__main__":
    main()
