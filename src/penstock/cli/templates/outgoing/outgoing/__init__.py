"""The lifecycle `outgoing`: items that are sent to an API, each once.

A lifecycle is a value. This module imports nothing heavy: the flow and its client are imported when they are built.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock import Lifecycle

from outgoing.machine import machine
from outgoing.operations import items, resend
from outgoing.settings import OutgoingSettings

if TYPE_CHECKING:
    from penstock import Ports

    from outgoing.flow import Sending


def build(settings: OutgoingSettings, ports: Ports) -> Sequence[Sending]:
    """The flows under these settings."""
    from penstock import Http

    from outgoing.flow import Sending

    return [Sending(settings, Http(settings.url, ports.clock))]


lifecycle = Lifecycle(
    "outgoing",
    "Items that are sent to an API, each once.",
    settings=OutgoingSettings,
    machines=[machine],
    build=build,
    readings=[items],
    operations=[resend],
)
