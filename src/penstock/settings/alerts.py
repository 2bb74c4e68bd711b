"""`[alerts]`: when somebody should know, and who is told."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Literal

import msgspec

from penstock.settings.addresses import is_loopback
from penstock.settings.typed import Secret, Settings, Url, says

Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
_SINK = re.compile(r"[a-z][a-z0-9_-]{0,30}")
_POLICY = re.compile(r"[a-z][a-z0-9_]{0,44}")
_PORTS = 65_535


class PolicySettings(Settings):
    """`[alerts.policies.*]`: a policy of one's own, or what is to be different in one that exists."""

    enabled: Annotated[bool, says("Whether anybody is told.")] = True
    kind: Annotated[
        str | None,
        says("What is looked at; a policy that exists has its kind.", examples=["dead_letters"]),
    ] = None
    says: Annotated[str | None, says("What it means, in one sentence.", examples=["Orders were refused."])] = None
    severity: Annotated[Severity | None, says("How bad it is.", examples=["warning"])] = None
    warning: Annotated[float | None, says("From which value on it is a warning.", examples=[50])] = None
    critical: Annotated[float | None, says("From which value on it is critical.", examples=[100])] = None
    window: Annotated[timedelta | None, says("The time that is looked at; of events, after which it is over.")] = None
    hold: Annotated[
        timedelta | None,
        says("How long it must be true before it fires, and be over before it is resolved."),
    ] = msgspec.field(default=None, name="for")
    every: Annotated[timedelta | None, says("How often it is looked at, at most.")] = None
    match: Annotated[
        tuple[str, ...] | None,
        says("Machines, gates, schedules or others that it is for; ! leaves out.", examples=[["shop/*", "!shop/test"]]),
    ] = None
    events: Annotated[
        tuple[str, ...] | None, says("Kinds of events that fire it.", examples=[["contacts.failing"]])
    ] = None
    resolved_by: Annotated[
        tuple[str, ...] | None, says("Kinds of events that resolve it.", examples=[["contacts.working"]])
    ] = None
    subject: Annotated[str | None, says("The field of the event that says what it is about.", examples=["account"])] = (
        None
    )


class SinkSettings(Settings):
    """What every sink has."""

    severities: Annotated[tuple[Severity, ...], says("Only alerts of these severities.", filled=True)] = (
        "warning",
        "critical",
    )
    policies: Annotated[
        tuple[str, ...], says("Only alerts of these policies; ! leaves out.", examples=[["dead_letters"]])
    ] = ("*",)


class SlackSettings(SinkSettings):
    """`[alerts.slack.*]`: an incoming webhook of Slack's."""

    url: Annotated[Secret, says("The address of the webhook, which is a secret.", examples=[{"env": "SLACK_URL"}])]


class PagerDutySettings(SinkSettings):
    """`[alerts.pagerduty.*]`: a service of PagerDuty's, by its Events API v2."""

    routing_key: Annotated[
        Secret, says("The integration key of the service.", examples=[{"env": "PAGERDUTY_ROUTING_KEY"}])
    ]
    url: Annotated[Url, says("Where the API is served.")] = Url("https://events.pagerduty.com")
    severities: Annotated[tuple[Severity, ...], says("Only alerts of these severities.", filled=True)] = ("critical",)


class EmailSettings(SinkSettings):
    """`[alerts.email.*]`: a mail server and who is written to."""

    host: Annotated[str, says("The mail server.", examples=["smtp.example.com"])]
    sender: Annotated[str, says("Who writes.", examples=["penstock@example.com"])] = msgspec.field(name="from")
    to: Annotated[tuple[str, ...], says("Who is written to.", filled=True, examples=[["ops@example.com"]])]
    port: Annotated[int | None, says("Its port; by default 587, 465 with tls.", ge=1, le=_PORTS)] = None
    security: Annotated[
        Literal["starttls", "tls", "none"], says("How the connection is secured; none is for this machine alone.")
    ] = "starttls"
    user: Annotated[str | None, says("Who signs in.", examples=["penstock"])] = None
    password: Annotated[Secret | None, says("The password.", examples=[{"env": "SMTP_PASSWORD"}])] = None

    def __post_init__(self) -> None:
        wrong = []
        if self.security == "none" and not is_loopback(self.host):
            wrong.append(f'security: "none" is for this machine alone, and {self.host} is another')
        if (self.user is None) != (self.password is None):
            wrong.append("user and password belong together; give both or none")
        for name, addresses in (("from", (self.sender,)), ("to", self.to)):
            wrong += [f'{name}: "{one}" must be an address like ops@example.com' for one in addresses if not _mail(one)]
        if wrong:
            raise ValueError("\n".join(wrong))


class WebhookSettings(SinkSettings):
    """`[alerts.webhook.*]`: an address of one's own, called as Standard Webhooks says."""

    url: Annotated[Url, says("The address that is called.", examples=["https://hooks.example.com/penstock"])]
    secret: Annotated[
        Secret,
        says("The key of the signature, whsec_ and 24 to 64 bytes in base64.", examples=[{"env": "WEBHOOK_SECRET"}]),
    ]


class AlertSettings(Settings):
    """`[alerts]`."""

    log: Annotated[bool, says("Whether a worker logs every change of an alert.")] = True
    runbook: Annotated[
        str | None,
        says(
            "Where the runbook is; notifications end with it, # and the policy's name.",
            examples=["https://wiki.example.com/penstock/alerts"],
        ),
    ] = None
    source: Annotated[str, says("How notifications call this program.")] = "penstock"
    heartbeat_url: Annotated[
        Secret | None,
        says("An outside address that is called while all is well, and misses the calls.", examples=[{"env": "PING"}]),
    ] = None
    heartbeat_every: Annotated[timedelta, says("How often it is called.", ge=timedelta(seconds=10))] = timedelta(
        minutes=1
    )
    policies: Annotated[
        dict[str, PolicySettings],
        says(
            "When somebody should know: changes of the policies that exist, and policies of your own.",
            examples={"dead_letters": {"critical": 500}},
        ),
    ] = {}
    slack: Annotated[
        dict[str, SlackSettings],
        says("Slack channels, by a name of your own.", examples={"engineering": {"url": {"env": "SLACK_URL"}}}),
    ] = {}
    pagerduty: Annotated[
        dict[str, PagerDutySettings],
        says(
            "PagerDuty services, by a name of your own.",
            examples={"on-call": {"routing_key": {"env": "PAGERDUTY_ROUTING_KEY"}}},
        ),
    ] = {}
    email: Annotated[
        dict[str, EmailSettings],
        says(
            "Who gets mail, by a name of your own.",
            examples={
                "operations": {"host": "smtp.example.com", "from": "penstock@example.com", "to": ["ops@example.com"]}
            },
        ),
    ] = {}
    webhook: Annotated[
        dict[str, WebhookSettings],
        says(
            "Addresses of your own, by name.",
            examples={"desk": {"url": "https://hooks.example.com/penstock", "secret": {"env": "WEBHOOK_SECRET"}}},
        ),
    ] = {}

    def __post_init__(self) -> None:
        wrong = [
            f'{kind}: "{name}" must be lower-case letters, digits, - and _, 31 at most'
            for kind in ("slack", "pagerduty", "email", "webhook")
            for name in getattr(self, kind)
            if not _SINK.fullmatch(name)
        ]
        wrong += [
            f'policies: "{name}" must be lower-case letters, digits and _, 45 at most'
            for name in self.policies
            if not _POLICY.fullmatch(name)
        ]
        if wrong:
            raise ValueError("\n".join(wrong))


def _mail(address: str) -> bool:
    return bool(re.fullmatch(r"[!-;=?A-~]+@[A-Za-z0-9.-]+", address))
