"""A webhook of one's own, signed as Standard Webhooks says: `webhook-id`, `webhook-timestamp`, `webhook-signature`."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

import msgspec

from penstock.connectors.sinks.notice import Notice
from penstock.connectors.sinks.posting import post
from penstock.model.clock import Clock, instant_text
from penstock.settings.alerts import WebhookSettings
from penstock.settings.secret import ConfigError

_PREFIX = "whsec_"
_KEY_BYTES = (24, 64)


class Webhook:
    """Calls an address with the notice as JSON. Who receives it knows a repetition by its id."""

    def __init__(self, settings: WebhookSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock

    async def tell(self, notice: Notice) -> None:
        body = msgspec.json.encode(document(notice))
        at = int(self._clock.now().timestamp())
        name = f"msg_{notice.id}"
        headers = {
            "content-type": "application/json",
            "webhook-id": name,
            "webhook-timestamp": str(at),
            "webhook-signature": signature(self._settings.secret.reveal(), name, at, body),
        }
        await post(str(self._settings.url), self._clock, "the webhook", content=body, headers=headers)


def document(notice: Notice) -> dict[str, object]:
    """The body: a type, when it happened, and what."""
    said = msgspec.to_builtins(notice)
    data = {name: value for name, value in said.items() if name not in {"id", "at", "thread"}}
    return {"type": f"alert.{notice.change}", "timestamp": instant_text(notice.at), "data": data}


def signature(secret: str, name: str, at: int, body: bytes) -> str:
    """`v1,` and the HMAC of id, timestamp and body. Raises ConfigError for a secret that is none."""
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if not _KEY_BYTES[0] <= len(key) <= _KEY_BYTES[1]:
        raise ConfigError("the secret of the webhook is not whsec_ and 24 to 64 bytes in base64")
    made = hmac.new(key, f"{name}.{at}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(made).decode()}"
