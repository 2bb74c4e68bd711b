"""The log: one line for each change, of the worker that delivers it."""

from __future__ import annotations

import structlog

from penstock.connectors.sinks.notice import Notice

log = structlog.get_logger()


class Log:
    """Writes a line, as severe as the alert."""

    async def tell(self, notice: Notice) -> None:
        alert, severity, says = notice.alert, notice.severity, notice.says
        if notice.change == "acknowledged":
            log.info("alert.acknowledged", alert=alert, severity=severity, by=notice.by, reason=notice.reason)
        elif notice.change == "resolved":
            log.info("alert.resolved", alert=alert, severity=severity, by=notice.by, reason=notice.reason)
        elif severity == "critical":
            log.error("alert.firing", alert=alert, severity=severity, says=says, runbook=notice.runbook)
        else:
            log.warning("alert.firing", alert=alert, severity=severity, says=says, runbook=notice.runbook)
