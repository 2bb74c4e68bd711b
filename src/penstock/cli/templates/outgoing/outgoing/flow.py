"""The flow: what a step does. It returns an outcome; the kernel commits all of it, or nothing."""

from __future__ import annotations

from urllib.parse import quote

from penstock import Flow, Gate, Http, Io, Outcome, replace

from outgoing.decide import decide
from outgoing.machine import Item, S, machine
from outgoing.settings import OutgoingSettings

GATE = Gate("outgoing/api")


class Sending(Flow[Item, OutgoingSettings, str]):
    """Sends items. `Http` raises what a failed call means: Transient, Throttled, Rejected, Fatal or InDoubt."""

    machine = machine
    decide = staticmethod(decide)

    def __init__(self, settings: OutgoingSettings, http: Http) -> None:
        super().__init__(settings)
        self._http = http

    def gate(self, unit: Item) -> Gate:
        """Calls through a gate share its budget, and stop together when the API asks for it."""
        return GATE

    async def look(self, unit: Item, io: Io) -> str:
        """The API's id of the item; "" where it has none."""
        found = await self._http.send("GET", f"/items/{quote(unit.item_id, safe='')}", missing_ok=True)
        return str(found.json()["id"]) if found is not None else ""

    async def act(self, what: str, unit: Item, seen: str | None, io: Io) -> Outcome[Item]:
        """Send it, or record that it is there."""
        if what == "record":
            return Outcome(unit, replace(unit, status=S.SENT, remote_id=seen), "it was there already")
        body = {"item_id": unit.item_id, "text": unit.text}
        answer = await self._http.send("POST", "/items", json=body)
        assert answer is not None
        return Outcome(unit, replace(unit, status=S.SENT, remote_id=str(answer.json()["id"])), "accepted")

    async def stop(self) -> None:
        """The worker has stopped."""
        await self._http.close()
