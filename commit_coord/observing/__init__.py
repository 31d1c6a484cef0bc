"""Monitoring of a catalog: metrics and traces made from its events, and the audit log of forced unlocks.

``docs/observability.md`` lists what there is and what to watch.
"""

from __future__ import annotations

from commit_coord.config import MetricsExporter, Settings, TracesExporter
from commit_coord.errors import ConfigError
from commit_coord.events import Events
from commit_coord.extras import install_module


def observe(events: Events, settings: Settings, *, catalog: str) -> None:
    """Feed what *settings* ask for from *events*. What is off is not imported, and nobody listens for it.

    Raises:
        ConfigError: Its extra is not installed.
    """
    manager = settings.lock_impl
    try:
        if settings.commit_coord_metrics is MetricsExporter.PROMETHEUS:
            from commit_coord.observing.prometheus import Metrics

            events.subscribe(Metrics(catalog, manager))
        if settings.commit_coord_traces is TracesExporter.OPENTELEMETRY:
            from commit_coord.observing.opentelemetry import Traces

            events.subscribe(Traces(catalog, manager))
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0].partition("_")[0]
        key = "commit-coord.metrics" if missing == "prometheus" else "commit-coord.traces"
        raise ConfigError("missing optional dependency", key=key, accepted=install_module(error.name)) from error
