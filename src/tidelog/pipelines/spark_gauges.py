"""A pipeline's metrics in Spark's own metrics system: its JSON, JMX, whatever sink is set.

Names are `<application>.driver.tidelog.<query>.<source>.maxOffsetsBehindLatest` and so on, as Spark's Kafka
source has them in the progress of a query, where a source in Python cannot put any. What Spark counts itself
(inputRate-total, states-rowsTotal, …) is at `spark.streaming.<query>`, with the setting
spark.sql.streaming.metricsEnabled, which pipelines have.

Spark has no public way to add a source of metrics from Python. Two private fields lead to the metrics system;
where a version of Spark has others, pipelines run without these metrics, and the log says so once.
"""

import logging
from collections.abc import Mapping
from typing import Any

from tidelog.client.pipeline_metrics import METRICS

log = logging.getLogger(__name__)
SOURCE_NAME = "tidelog"


class _Source:
    """What Spark's metrics system asks of a source of metrics, called from Java."""

    def __init__(self, registry: Any) -> None:
        self._registry = registry

    def sourceName(self) -> str:  # noqa: N802 (Spark's name)
        return SOURCE_NAME

    def metricRegistry(self) -> Any:  # noqa: N802
        return self._registry

    class Java:
        """Read by py4j."""

        implements = ("org.apache.spark.metrics.source.Source",)


class SparkGauges:
    """The gauges of one pipeline; `tell` sets them to what a status says."""

    def __init__(self, spark: Any) -> None:
        self._jvm: Any = None
        self._gauges: dict[str, Any] = {}
        try:
            self._registry = _registered(spark)
            self._jvm = spark.sparkContext._jvm
        except Exception as fault:  # py4j raises whatever Java did, by classes of its own
            log.warning("Spark's own metrics do not have those of the pipeline: %s", fault)

    def tell(self, status: Mapping[str, Any]) -> None:
        """Set every gauge that Spark does not have itself."""
        if self._jvm is None:
            return
        for metric in METRICS:
            if metric.spark_name is not None:
                for labels, value in metric.samples(status):
                    name = ".".join([*map(_plain, labels.values()), metric.spark_name])
                    self._gauge(name).setValue(float(value))

    def _gauge(self, name: str) -> Any:
        if name not in self._gauges:
            gauge = self._jvm.com.codahale.metrics.DefaultSettableGauge(0.0)
            self._registry.register(name, gauge)
            self._gauges[name] = gauge
        return self._gauges[name]


def _registered(spark: Any) -> Any:
    """A registry of metrics that Spark's metrics system knows."""
    from pyspark.java_gateway import ensure_callback_server_started

    context = spark.sparkContext
    ensure_callback_server_started(context._gateway)
    registry = context._jvm.com.codahale.metrics.MetricRegistry()
    environment = _field(context._jvm, "org.apache.spark.SparkContext", "_env", context._jsc.sc())
    system = _field(context._jvm, "org.apache.spark.SparkEnv", "metricsSystem", environment)
    system.registerSource(_Source(registry))
    return registry


def _field(jvm: Any, name: str, field: str, of: Any) -> Any:
    found = jvm.java.lang.Class.forName(name).getDeclaredField(field)
    found.setAccessible(True)
    return found.get(of)


def _plain(text: str) -> str:
    """A part of a name: dots divide names, commas and blanks some sinks."""
    return "".join(char if char.isalnum() or char in "_-" else "_" for char in text)
