"""The catalogue and spans by OTLP over HTTP: another rendering of what `/metrics` answers. Needs `penstock[otlp]`."""

from __future__ import annotations

import itertools
import math
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.model.errors import UsageError
from penstock.observe.catalogue import Distribution, Metric, Sample
from penstock.settings.redaction import redact

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Metric as Sent
    from opentelemetry.sdk.metrics.export import MetricsData
    from opentelemetry.sdk.resources import Resource

    from penstock.settings.kernel import OtlpSettings

_SECONDS = 10
_SCOPE = "penstock"


def require() -> None:
    """Raises UsageError where the packages are missing."""
    try:
        import opentelemetry.exporter.otlp.proto.http
        import opentelemetry.sdk  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise UsageError("[otlp] needs further packages: pip install 'penstock[otlp]'") from error


def resource() -> Resource:
    """Who sends: this process."""
    from opentelemetry.sdk.resources import Resource

    instance = f"{socket.gethostname()}:{os.getpid()}"
    return Resource({"service.name": "penstock", "service.instance.id": instance})


def metrics_data(
    metrics: Iterable[Metric], samples: Iterable[Sample], sender: Resource, began: datetime, now: datetime
) -> MetricsData:
    """What the samples say, as OpenTelemetry has it; a metric without a sample is left out."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    times = (_nanoseconds(began), _nanoseconds(now))
    sent = [_sent(one, by_name[one.name], times) for one in metrics if one.name in by_name]
    scope = ScopeMetrics(InstrumentationScope(_SCOPE), sent, "")
    return MetricsData([ResourceMetrics(sender, [scope], "")])


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000) * 1_000_000


def _sent(metric: Metric, samples: Iterable[Sample], times: tuple[int, int]) -> Sent:
    from opentelemetry.sdk.metrics import export

    points: list[Any] = []
    for sample in samples:
        attributes = dict(zip(metric.labels, sample.labels, strict=True))
        if isinstance(sample.value, Distribution):
            points.append(_distribution(sample.value, attributes, times))
        else:
            points.append(export.NumberDataPoint(attributes, *times, sample.value))
    cumulative = export.AggregationTemporality.CUMULATIVE
    data: Any = export.Gauge(points)
    if metric.kind == "counter":
        data = export.Sum(points, cumulative, is_monotonic=True)
    elif metric.kind == "histogram":
        data = export.Histogram(points, cumulative)
    unit = "ms" if metric.name.endswith("_ms") else "s" if metric.name.endswith("seconds") else "1"
    return export.Metric(metric.name, metric.says, unit, data)


def _distribution(value: Distribution, attributes: dict[str, str], times: tuple[int, int]) -> Any:
    """Prometheus counts up to each bound, OpenTelemetry between two."""
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    counts = [count for _, count in value.bounds]
    between = [after - before for before, after in itertools.pairwise([0, *counts])]
    bounds = [bound for bound, _ in value.bounds[:-1]]
    least, most = math.nan, math.nan  # the ledger keeps neither
    return HistogramDataPoint(attributes, *times, counts[-1], value.total, between, bounds, least, most)


def metric_exporter(settings: OtlpSettings) -> Any:
    """Sends what `metrics_data` makes."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter(f"{settings.url}/v1/metrics", headers=_headers(settings), timeout=_SECONDS)


def _headers(settings: OtlpSettings) -> dict[str, str]:
    return {} if settings.token is None else {"authorization": f"Bearer {settings.token.reveal()}"}


class Spans:
    """Records spans and sends them in batches, on a thread of the library's own."""

    def __init__(self, settings: OtlpSettings, sender: Resource) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

        self._provider = TracerProvider(ParentBased(TraceIdRatioBased(settings.trace_share)), sender)
        exporter = OTLPSpanExporter(f"{settings.url}/v1/traces", headers=_headers(settings), timeout=_SECONDS)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer(_SCOPE)

    @contextmanager
    def span(self, name: str, facts: dict[str, Any]) -> Iterator[Any]:
        """As `Tracer.span` has it."""
        with self._tracer.start_as_current_span(name, attributes=facts, record_exception=False) as span:
            try:
                yield span
            except Exception as error:
                self.failed(error)
                raise

    def failed(self, error: BaseException) -> None:
        """As `Tracer.failed` has it; a secret in the error is not sent."""
        from opentelemetry.trace import Status, StatusCode, get_current_span

        get_current_span().set_status(Status(StatusCode.ERROR, redact(f"{type(error).__name__}: {error}")[:500]))

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()
