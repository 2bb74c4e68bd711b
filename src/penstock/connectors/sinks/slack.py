"""Slack: an incoming webhook."""

from __future__ import annotations

from penstock.connectors.sinks.notice import Notice
from penstock.connectors.sinks.posting import check_taken, post
from penstock.model.clock import Clock
from penstock.settings.alerts import SlackSettings

_COLOURS = {"critical": "#b91c1c", "warning": "#b45309", "info": "#475569"}
_DONE = "#15803d"
_TEXT = 3_000


class Slack:
    """Writes into the channel of a webhook. What Slack would read as a mention or a link is plain text."""

    def __init__(self, settings: SlackSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock

    async def tell(self, notice: Notice) -> None:
        check_taken(await post(self._settings.url.reveal(), self._clock, "Slack", json=message(notice)), "Slack")


def message(notice: Notice) -> dict[str, object]:
    """The document that a webhook takes: a line for notifications, and a coloured block."""
    title = _escaped(notice.title)
    lines = "\n".join(_escaped(line) for line in notice.lines)
    colour = _DONE if notice.change == "resolved" else _COLOURS.get(notice.severity, _COLOURS["info"])
    text = {"type": "mrkdwn", "text": f"*{title}*\n{lines}"[:_TEXT]}
    return {"text": title, "attachments": [{"color": colour, "blocks": [{"type": "section", "text": text}]}]}


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
