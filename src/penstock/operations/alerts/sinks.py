"""Which sinks are configured, and which changes each wants. The sinks themselves are connectors."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.operations.alerts.defaults import TEST
from penstock.operations.alerts.policy import matches
from penstock.settings.alerts import AlertSettings

LOG = "log"
EVERYONE = "all"
"""The subject of a test that is for every sink."""
SINKS = "alert."
"""How the names of all sinks begin, as subscribers."""
_KINDS = ("slack", "pagerduty", "email", "webhook")


class Named(NamedTuple):
    """A sink: its kind, its own name, and its settings; the log has none."""

    kind: str
    own: str
    settings: Any = None

    @property
    def name(self) -> str:
        """As a subscriber of the outbox."""
        return f"{SINKS}{self.kind}" if self.settings is None else f"{SINKS}{self.kind}.{self.own}"


def sinks_of(settings: AlertSettings) -> list[Named]:
    """Every sink that is configured, and the log unless it is switched off."""
    found = [Named(LOG, LOG)] if settings.log else []
    return [*found, *(Named(kind, own, one) for kind in _KINDS for own, one in getattr(settings, kind).items())]


def takes(sink: Named, policy: str, subject: str, severity: str) -> bool:
    """Whether a sink wants to be told of an alert."""
    if policy == TEST:
        return subject in (EVERYONE, sink.name)
    if sink.settings is None:
        return True
    return severity in sink.settings.severities and matches(policy, sink.settings.policies)
