"""Merges the metrics of all replicas into one text; a label tells them apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

LABEL = "replica"


def merged(texts: Mapping[str, str], up: Mapping[str, bool]) -> bytes:
    """Merge `texts` (metrics in Prometheus' text format, by replica name), adding a `LABEL` to each metric.

    `redraft_replica_up` says of which replicas there are any.
    """
    told = GaugeMetricFamily("redraft_replica_up", "Whether this replica's metrics are here.", labels=[LABEL])
    for replica, is_up in up.items():
        told.add_metric([replica], is_up)
    families: dict[str, Metric] = {told.name: told}
    for replica, text in texts.items():
        for family in text_string_to_metric_families(text):
            kept = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            kept.samples += [sample._replace(labels=sample.labels | {LABEL: replica}) for sample in family.samples]
    registry = CollectorRegistry()
    registry.register(_Given(families.values()))
    return generate_latest(registry)


class _Given(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)
