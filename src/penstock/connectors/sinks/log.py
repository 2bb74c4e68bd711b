"""The log: one line for each change, of the worker that delivers it."""

from __future__ import annotations

import structlog

from penstock.connectors.sinks.notice import Notice

log = structlog.get_logger()


class Log:
    """Writes a line, as severe as the alert."""

    async def tell(self, notice: Notice) -> None:
        said = {"alert": notice.alert, "severity": notice.severity, "says": notice.says, "since": notice.since}
        if notice.change == "acknowledged":
            log.info("alert.acknowledged", **said, by=notice.by, reason=notice.reason)
        elif notice.change == "resolved":
            log.info("alert.resolved", **said, by=notice.by, reason=notice.reason)
        elif notice.severity == "critical":
            log.error("alert.firing", **said, runbook=notice.runbook)
        else:
            log.warning("alert.firing", **said, runbook=notice.runbook)
