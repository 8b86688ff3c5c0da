"""docs/metrics.md has every metric as it is, and what watches a cluster uses only metrics that exist.

The dashboard is held against the schema that Grafana publishes (kinds/dashboard/dashboard_kind.cue), as far
as a dashboard of ours uses it.
"""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tidelog.broker.telemetry.metric_families import FAMILIES, Kind, MetricFamily
from tidelog.model.metrics_settings import METRICS_SETTINGS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
ASSETS = ROOT / "src" / "tidelog" / "server" / "metrics_assets"
DASHBOARD: dict[str, Any] = json.loads((ASSETS / "grafana-dashboard.json").read_text(encoding="utf-8"))
ALERTS = (ASSETS / "tidelog-alerts.yml").read_text(encoding="utf-8")
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
DRAWN = [panel for panel in PANELS if panel["type"] != "row"]
VARIABLES: list[dict[str, Any]] = DASHBOARD["templating"]["list"]
#: words of PromQL and names that Prometheus itself makes
NOT_OURS = {"up"}


def row(family: MetricFamily) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"| `{family.name}` | {family.kind.value} | {labels} | {family.meaning} |"


def expressions() -> list[str]:
    found = [target["expr"] for panel in DRAWN for target in panel["targets"]]
    found += [annotation["expr"] for annotation in DASHBOARD["annotations"]["list"]]
    found += [variable["definition"] for variable in VARIABLES if variable["type"] == "query"]
    return found + re.findall(r"^ +expr: (.+)$", ALERTS, re.MULTILINE)


def metrics_of(expression: str) -> dict[str, str]:
    """The metric names of an expression, and the labels that each is selected by."""
    return dict(re.findall(r"\b((?:tidelog|process)_[a-z_]+)(?:\{(.*?)\})?", expression))


def base_of(name: str) -> str:
    """The metric that a name is of: a histogram's names have suffixes."""
    return name if name in FAMILIES else re.sub("_(bucket|sum|count)$", "", name)


class TestPage:
    def test_the_metrics_are_listed_as_they_are(self) -> None:
        listed = set(PAGE.splitlines())
        assert [row(family) for family in FAMILIES.values() if row(family) not in listed] == []

    def test_no_metric_is_left_that_does_not_exist(self) -> None:
        listed = re.findall(r"^\| `((?:tidelog|process)_\w+)` \|", PAGE, re.MULTILINE)
        assert sorted(listed) == sorted(FAMILIES)

    def test_the_settings_are_told_of(self) -> None:
        assert [setting.name for setting in METRICS_SETTINGS if f"`{setting.name}`" not in PAGE] == []

    def test_every_alert_is_explained(self) -> None:
        alerts = re.findall(r"- alert: (\w+)", ALERTS)
        assert len(alerts) >= 10
        assert [alert for alert in alerts if f"`{alert}`" not in PAGE] == []


class TestQueries:
    def test_every_metric_exists_with_its_labels(self) -> None:
        for expression in expressions():
            used = metrics_of(expression)
            assert used or any(re.search(rf"\b{name}\b", expression) for name in NOT_OURS), expression
            for name, selector in used.items():
                base = base_of(name)
                assert base in FAMILIES, f"{name} does not exist: {expression}"
                family = FAMILIES[base]
                assert (family.kind is Kind.HISTOGRAM) == (base != name), f"{name}: a histogram has suffixes"
                labels = set(re.findall(r"(\w+)(?:=~|!~|!=|=)", selector))
                assert labels <= {*family.labels, "instance", "job"}, f"{name} has no labels {labels}"

    def test_counters_are_shown_as_rates_and_gauges_are_not(self) -> None:
        for expression in expressions():
            for name in metrics_of(expression):
                rated = re.search(rf"(rate|increase)\({name}\b", expression) is not None
                counts = FAMILIES[base_of(name)].kind is not Kind.GAUGE
                assert rated == counts or expression.startswith("label_values("), expression

    def test_brackets_match(self) -> None:
        for expression in expressions():
            for opening, closing in ("()", "{}", "[]"):
                assert expression.count(opening) == expression.count(closing), expression

    def test_groupings_use_labels_that_exist(self) -> None:
        for expression in expressions():
            of_metrics = {
                label for name in metrics_of(expression) for label in FAMILIES[base_of(name)].labels
            }
            for grouped in re.findall(r"by \((.*?)\)", expression):
                assert {label.strip() for label in grouped.split(",")} <= {*of_metrics, "le", "instance"}

    def test_legends_show_labels_that_are_left(self) -> None:
        for panel in DRAWN:
            for target in panel["targets"]:
                shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                grouped = re.search(r"by \((.*?)\)", target["expr"])
                left = {label.strip() for label in grouped[1].split(",")} if grouped else {"instance"}
                assert shown <= left, f"{panel['title']}: {target['legendFormat']}"


class TestDashboard:
    def test_its_head(self) -> None:
        assert isinstance(DASHBOARD["title"], str) and 8 <= len(DASHBOARD["uid"]) <= 40
        assert DASHBOARD["graphTooltip"] in (0, 1, 2)
        assert isinstance(DASHBOARD["schemaVersion"], int) and DASHBOARD["schemaVersion"] >= 36
        assert set(DASHBOARD["time"]) == {"from", "to"}
        assert "id" not in DASHBOARD, "a dashboard to import has no number of an installation"

    def test_ids_are_unique(self) -> None:
        ids = [panel["id"] for panel in PANELS]
        assert all(isinstance(each, int) for each in ids) and len(ids) == len(set(ids))

    def test_panels_lie_on_the_grid_and_not_on_each_other(self) -> None:
        taken: set[tuple[int, int]] = set()
        for panel in PANELS:
            place = panel["gridPos"]
            assert place["h"] > 0 and 0 < place["w"] <= 24 and place["x"] >= 0 and place["y"] >= 0
            assert place["x"] + place["w"] <= 24
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken, f"{panel['title']} covers another panel"
            taken |= cells

    @pytest.mark.parametrize("panel", DRAWN, ids=lambda panel: panel["title"])
    def test_a_panel_is_whole(self, panel: dict[str, Any]) -> None:
        assert panel["type"] in ("stat", "timeseries")
        assert panel["title"] and panel["description"].endswith(".")
        references = [target["refId"] for target in panel["targets"]]
        assert references and len(references) == len(set(references))
        assert panel["fieldConfig"].keys() == {"defaults", "overrides"}
        defaults = panel["fieldConfig"]["defaults"]
        assert isinstance(defaults["unit"], str)
        assert defaults["color"]["mode"] in ("thresholds", "palette-classic")
        for steps in [defaults["thresholds"]["steps"]] if "thresholds" in defaults else []:
            assert steps[0]["value"] is None, "the first step counts from minus infinity"
            assert all(isinstance(step["color"], str) for step in steps)
            values = [step["value"] for step in steps[1:]]
            assert values == sorted(values)

    def test_every_query_goes_to_the_chosen_source(self) -> None:
        source = {"type": "prometheus", "uid": "${datasource}"}
        for panel in DRAWN:
            assert panel["datasource"] == source
            assert all(target["datasource"] == source for target in panel["targets"])

    def test_variables_exist_where_they_are_used(self) -> None:
        names = {variable["name"] for variable in VARIABLES}
        for variable in VARIABLES:
            assert variable["type"] in ("query", "datasource") and variable["hide"] in (0, 1, 2)
        used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD)))
        assert used - {"__rate_interval", "__all"} == names

    def test_every_row_has_panels(self) -> None:
        kinds = [panel["type"] for panel in PANELS]
        assert kinds[0] == "row" and kinds[-1] != "row"
        assert all(pair != ("row", "row") for pair in itertools.pairwise(kinds))
