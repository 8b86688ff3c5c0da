"""Figures over time are bounded; charts are text that cannot carry markup."""

import pytest

from tidelog.console.charts import line_chart, nice_ceiling, short_number, spark_line
from tidelog.console.history import History, Rates, Sample


def test_a_series_keeps_its_last_samples_and_old_series_give_way() -> None:
    history = History(samples_max=3, series_max=2)
    for number in range(5):
        history.add("a", number, number)
    assert history.samples("a") == [Sample(2, 2), Sample(3, 3), Sample(4, 4)]
    history.add("b", 0, 0)
    history.add("a", 5, 5)
    history.add("c", 0, 0)
    assert len(history) == 2
    assert history.samples("b") == []
    assert history.latest("a") == 5
    assert history.latest("b") is None


def test_rates_need_two_counters_and_survive_a_reset() -> None:
    rates = Rates()
    assert rates.rate("t", 10.0, 100) is None
    assert rates.rate("t", 12.0, 300) == 100.0
    assert rates.rate("t", 12.0, 300) is None
    assert rates.rate("t", 13.0, 0) == 0.0
    rates.keep_only(set())
    assert rates.rate("t", 14.0, 5) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.26, "0.3"), (9.96, "10.0"), (12.3, "12"), (1500, "1.5k"), (2e6, "2M"), (3e9, "3G")],
)
def test_short_numbers(value: float, text: str) -> None:
    assert short_number(value) == text


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (1, 1), (0.3, 0.5), (11, 20), (23, 25), (99, 100), (4_100, 5_000)]
)
def test_axes_end_at_round_numbers(value: float, top: float) -> None:
    assert nice_ceiling(value) == pytest.approx(top)


def test_charts() -> None:
    samples = [Sample(0, 0), Sample(10, 40)]
    chart = line_chart(samples, '<b title="x">')
    assert "<b" not in chart
    assert 'd="M52.0' in chart
    assert "Collecting" in line_chart(samples[:1], "x")
    assert spark_line(samples[:1]) == ""
    assert spark_line(samples).startswith("<svg")
