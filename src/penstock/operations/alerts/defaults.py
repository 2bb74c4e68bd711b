"""The policies that every program has. `runbook.md` says of each what it means and what to do."""

from __future__ import annotations

from datetime import timedelta

from penstock.operations.alerts.policy import Policy

_MINUTE, _HOUR, _DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
TEST = "test"
"""The policy of alerts that `penstock alerts test` makes."""

POLICIES = (
    Policy(
        name="dead_letters",
        says="Units have failed for good.",
        kind="dead_letters",
        warning=1,
        critical=101,
        # Runs of these are told by policies of their own, and a failed run is not tried again.
        match=("*", "!rule_*", "!harvest_*"),
    ),
    Policy(
        name="parked_units",
        says="Units were set aside for a person.",
        kind="parked",
        severity="critical",
        events=("unit.parked",),
        subject="unit",
    ),
    Policy(
        name="success_rate",
        says="Too few units end well.",
        kind="success_rate",
        warning=0.03,
        critical=0.10,
        window=_HOUR,
        hold=5 * _MINUTE,
        every=5 * _MINUTE,
        match=("*", "!rule_*", "!delivery"),
    ),
    Policy(
        name="gate_down",
        says="A provider does not answer, or refuses our credentials.",
        kind="gates",
        severity="critical",
        events=("gate.breaker", "gate.stopped"),
    ),
    Policy(
        name="throttle_burst",
        says="A provider keeps asking to be called less often.",
        kind="throttles",
        warning=4,
        window=5 * _MINUTE,
        events=("gate.slowed",),
    ),
    Policy(
        name="long_wait",
        says="A provider asked for quiet for longer than is believed.",
        window=2 * _DAY,
        events=("gate.long_wait", "unit.long_wait"),
    ),
    Policy(
        name="schedule_failing",
        says="A periodic job fails.",
        kind="schedules",
        warning=1,
        critical=3,
        hold=2 * _MINUTE,
    ),
    Policy(
        name="schedule_mended",
        says="A clock was wrong, and a schedule was brought forward.",
        events=("schedule.mended",),
    ),
    Policy(
        name="stale_flow",
        says="A machine that used to move does not.",
        kind="stale_flow",
        window=6 * _HOUR,
        every=10 * _MINUTE,
        match=("*", "!schedule", "!delivery", "!bulk_action"),
    ),
    Policy(
        name="stuck_units",
        says="Units stay in a state for longer than it allows.",
        kind="stuck",
        warning=1,
        every=10 * _MINUTE,
    ),
    Policy(name="quota", says="A provider's budget will not last.", kind="quota", every=10 * _MINUTE),
    Policy(name="doctor", says="The doctor found something wrong.", kind="doctor"),
    Policy(
        name="surroundings",
        says="What the ledger stands on fills up or holds it back.",
        window=2 * _DAY,
        events=("ledger.disk", "ledger.settings", "ledger.snapshots", "ledger.connections"),
        subject="subject",
    ),
    Policy(
        name="unknown_machine",
        says="Units of a machine that no running program knows were set aside.",
        severity="critical",
        events=("machine.unknown",),
    ),
    Policy(
        name="unknown_subscriber",
        says="Events wait for a subscriber that no running program has.",
        events=("subscriber.unknown",),
    ),
    Policy(name="raw_unreadable", says="Landed data cannot be read.", events=("raw.unreadable",), window=2 * _DAY),
    Policy(name="critical_event", says="Something critical happened that no policy names.", severity="critical"),
    Policy(name=TEST, says="Somebody tries whether alerts arrive.", severity="info", window=_MINUTE),
)
