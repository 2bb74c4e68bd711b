"""PagerDuty: Events API v2. One incident for each alert, by its `dedup_key`."""

from __future__ import annotations

from penstock.connectors.sinks.notice import Notice
from penstock.connectors.sinks.posting import check_taken, post
from penstock.model.clock import Clock, instant_text
from penstock.settings.alerts import PagerDutySettings

_ACTIONS = {"firing": "trigger", "acknowledged": "acknowledge", "resolved": "resolve"}
_SUMMARY = 1_024


class PagerDuty:
    """Triggers, acknowledges and resolves incidents of a service."""

    def __init__(self, settings: PagerDutySettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock

    async def tell(self, notice: Notice) -> None:
        document = event(notice, self._settings.routing_key.reveal())
        address = f"{self._settings.url.rstrip('/')}/v2/enqueue"
        check_taken(await post(address, self._clock, "PagerDuty", json=document), "PagerDuty")


def event(notice: Notice, routing_key: str) -> dict[str, object]:
    """The document that the API takes."""
    document: dict[str, object] = {
        "routing_key": routing_key,
        "event_action": _ACTIONS[notice.change],
        "dedup_key": f"penstock-{notice.thread}",
    }
    if notice.change == "firing":
        document["payload"] = {
            "summary": f"{notice.policy} {notice.subject}: {notice.says}"[:_SUMMARY],
            "source": notice.source,
            "severity": notice.severity,
            "timestamp": instant_text(notice.at),
            "component": notice.subject,
            "class": notice.policy,
            "custom_details": {**notice.facts, "alert": notice.alert, "unit": notice.unit},
        }
        document["client"] = "Penstock"
        if notice.runbook is not None:
            document["links"] = [{"href": notice.runbook, "text": "Runbook"}]
    return document
