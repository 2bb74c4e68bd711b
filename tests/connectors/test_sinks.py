"""Sinks over real sockets, against servers that speak their protocols."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import email
import hashlib
import hmac
import json
import queue
import socketserver
import ssl
import threading
from datetime import UTC, datetime

import pytest
import structlog.testing
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from penstock.connectors.sinks.log import Log
from penstock.connectors.sinks.mail import send
from penstock.connectors.sinks.notice import Notice, notice_of
from penstock.connectors.sinks.pagerduty import PagerDuty
from penstock.connectors.sinks.slack import Slack
from penstock.connectors.sinks.webhook import Webhook, signature
from penstock.ledger.outbox import EventRow
from penstock.model.clock import SystemClock
from penstock.model.errors import Fatal, Rejected, Throttled, Transient
from penstock.settings.alerts import EmailSettings, PagerDutySettings, SlackSettings, WebhookSettings
from penstock.settings.secret import ConfigError, Secret
from penstock.settings.typed import Url
from penstock.simulators.server import serving

AT = datetime(2026, 11, 15, 12, tzinfo=UTC)
KEY = "whsec_" + base64.b64encode(b"k" * 32).decode()


def notice(change="firing", **more):
    said = {
        "alert": "alert:gate_down/shop%2Facme",
        "policy": "gate_down",
        "subject": "shop/acme",
        "severity": "critical",
        "says": "no <b>answer</b> & <!channel>\x1b[31m",
        "since": "2026-11-15T11:00:00.000Z",
        "facts": {"failures": 6},
        **more,
    }
    event = EventRow("default", f"alert.{change}:1", f"alert.{change}", None, said, None, None, None, AT)
    return notice_of(event, source="penstock", runbook="https://wiki.example.com/alerts")


class Taker:
    """Takes calls, and answers each with the next of its answers; then with 202."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.calls = []

    async def answer(self, request):
        self.calls.append((request.url.path, dict(request.headers), await request.body()))
        status, headers, *said = self.answers.pop(0) if self.answers else (202, {})
        return Response(said[0] if said else "what a server says", status, headers)

    @contextlib.asynccontextmanager
    async def served(self):
        async with serving(Starlette(routes=[Route("/{path:path}", self.answer, methods=["POST", "GET"])])) as address:
            yield address


def tell(taker, make, *notices):
    """Hand notices to the sink that `make` makes of the server's address."""

    async def main():
        async with taker.served() as address:
            for one in notices:
                await make(address).tell(one)

    asyncio.run(main())
    return [json.loads(body) for _, _, body in taker.calls]


@pytest.fixture
def secret(monkeypatch):
    def make(value, name="SINK_SECRET"):
        monkeypatch.setenv(name, value)
        return Secret("env", name)

    return make


def test_slack_gets_a_line_and_a_block_that_mention_nobody(secret):
    taker = Taker((200, {}))

    def slack(address):
        return Slack(SlackSettings(url=secret(f"{address}/services/T0/B0/hush-hush")), SystemClock())

    (said,) = tell(taker, slack, notice())
    assert taker.calls[0][0] == "/services/T0/B0/hush-hush"
    assert said["text"] == "[penstock] CRITICAL: gate_down shop/acme"
    text = said["attachments"][0]["blocks"][0]["text"]["text"]
    assert "no &lt;b&gt;answer&lt;/b&gt; &amp; &lt;!channel&gt;" in text
    assert "\x1b" not in text
    assert "https://wiki.example.com/alerts#gate_down" in text


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((429, {"Retry-After": "7"}), Throttled),
        ((500, {}), Transient),
        ((503, {}), Transient),
        ((404, {}), Rejected),
        ((403, {}), Fatal),
    ],
)
def test_an_answer_that_is_no_yes_means_what_it_means_elsewhere(secret, answer, error):
    def slack(address):
        return Slack(SlackSettings(url=secret(f"{address}/services/T0/B0/hush-hush")), SystemClock())

    with pytest.raises(error) as caught:
        tell(Taker(answer), slack, notice())
    assert str(caught.value).startswith("Slack: ")
    assert "hush-hush" not in str(caught.value)
    if error is Throttled:
        assert caught.value.retry_after == 7


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("ok", None),
        ("", None),
        ('{"ok": true}', None),
        ('{"status": "success", "message": "Event processed", "dedup_key": "x"}', None),
        ('{"result": "success", "error": null}', None),
        ('{"ok": false, "error": "invalid_auth"}', Rejected),
        ('{"success": false}', Rejected),
        ('{"status": "invalid event", "errors": ["routing_key"]}', Rejected),
        ("\n<!doctype html><title>Sign in to this network</title>", Transient),
    ],
)
def test_a_success_that_tells_of_an_error_is_none(secret, said, error):
    def slack(address):
        return Slack(SlackSettings(url=secret(f"{address}/hush-hush")), SystemClock())

    def duty(address):
        return PagerDuty(PagerDutySettings(routing_key=secret("R" * 32), url=address), SystemClock())

    for make, who in ((slack, "Slack"), (duty, "PagerDuty")):
        expected = pytest.raises(error, match=f"{who}: 200") if error else contextlib.nullcontext()
        with expected:
            tell(Taker((200, {}, said)), make, notice())


def test_nobody_listens(secret):
    slack = Slack(SlackSettings(url=secret("http://127.0.0.1:9/hush-hush")), SystemClock())
    with pytest.raises(Transient, match="Slack: could not connect"):
        asyncio.run(slack.tell(notice()))
    outside = Slack(SlackSettings(url=secret("http://hooks.example.com/hush-hush")), SystemClock())
    with pytest.raises(ConfigError, match="must be https"):
        asyncio.run(outside.tell(notice()))


def test_pagerduty_has_one_incident_from_trigger_to_resolve(secret):
    taker = Taker()

    def duty(address):
        return PagerDuty(PagerDutySettings(routing_key=secret("R" * 32), url=address), SystemClock())

    said = tell(taker, duty, notice(), notice("acknowledged"), notice("resolved"))
    assert [path for path, *_ in taker.calls] == ["/v2/enqueue"] * 3
    assert [one["event_action"] for one in said] == ["trigger", "acknowledge", "resolve"]
    assert len({one["dedup_key"] for one in said}) == 1
    assert {one["routing_key"] for one in said} == {"R" * 32}
    assert said[0]["payload"]["severity"] == "critical"
    assert said[0]["payload"]["timestamp"] == "2026-11-15T12:00:00.000Z"
    assert said[0]["links"] == [{"href": "https://wiki.example.com/alerts#gate_down", "text": "Runbook"}]
    assert "payload" not in said[2]


def test_a_webhook_is_signed_and_has_the_same_id_when_it_is_sent_again(secret):
    taker = Taker()

    def hook(address):
        return Webhook(WebhookSettings(url=Url(f"{address}/hook"), secret=secret(KEY)), SystemClock())

    said = tell(taker, hook, notice(), notice())
    for path, headers, body in taker.calls:
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        wanted = base64.b64encode(hmac.new(b"k" * 32, signed, hashlib.sha256).digest()).decode()
        assert (path, headers["webhook-signature"]) == ("/hook", f"v1,{wanted}")
        assert headers["content-type"] == "application/json"
    assert len({headers["webhook-id"] for _, headers, _ in taker.calls}) == 1
    assert said[0]["type"] == "alert.firing"
    assert said[0]["data"]["policy"] == "gate_down"


def test_the_signature_is_that_of_the_standard():
    # The example of the specification's reference libraries.
    made = signature(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
    )
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    with pytest.raises(ConfigError, match="24 to 64 bytes"):
        signature("whsec_short", "m", 1, b"")


class Mails(socketserver.ThreadingTCPServer):
    """A mail server: what it took, and what it answers to a command instead of the usual."""

    daemon_threads = True

    def __init__(self) -> None:
        self.mails: list[bytes] = []
        self.instead: dict[str, str] = {}
        super().__init__(("127.0.0.1", 0), _Smtp)


class _Smtp(socketserver.StreamRequestHandler):
    """As much of a mail server as a client needs. Its answers to a command may be replaced."""

    server: Mails

    def handle(self):
        self._say("220 here")
        while line := self.rfile.readline().decode().strip():
            word = line.split(" ")[0].upper()
            if word in self.server.instead:
                self._say(self.server.instead[word])
            elif word == "DATA":
                self._say("354 go on")
                lines = []
                while (part := self.rfile.readline()) != b".\r\n":
                    lines.append(part)
                self.server.mails.append(b"".join(lines))
                self._say("250 taken")
            elif word == "QUIT":
                self._say("221 bye")
                return
            else:
                self._say("250 fine")

    def _say(self, text):
        self.wfile.write(f"{text}\r\n".encode())


@pytest.fixture
def smtp():
    with Mails() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def mail_settings(server, **more):
    return EmailSettings(
        host="127.0.0.1",
        port=server.server_address[1],
        security="none",
        sender="penstock@example.com",
        to=("ops@example.com", "boss@example.com"),
        **more,
    )


def test_a_mail_says_what_and_belongs_to_the_thread_of_its_alert(smtp):
    send(notice(), mail_settings(smtp))
    send(notice("resolved", by="jo", reason="mended"), mail_settings(smtp))
    first, last = (email.message_from_bytes(one) for one in smtp.mails)
    assert first["Subject"] == "[penstock] CRITICAL: gate_down shop/acme"
    assert (first["From"], first["To"]) == ("penstock@example.com", "ops@example.com, boss@example.com")
    assert first["Importance"] == "high"
    assert first["References"] == last["References"]
    assert first["Message-ID"] != last["Message-ID"]
    assert "resolved by jo: mended" in last.get_payload()
    assert "failures: 6" in first.get_payload()


@pytest.mark.parametrize(
    ("word", "answer", "error"),
    [
        ("RCPT", "550 nobody of that name", Rejected),
        ("RCPT", "451 later", Transient),
        ("MAIL", "421 too many", Transient),
        ("DATA", "554 no", Rejected),
    ],
)
def test_what_a_mail_server_refuses(smtp, word, answer, error):
    smtp.instead[word] = answer
    with pytest.raises(error):
        send(notice(), mail_settings(smtp))


def test_a_mail_server_that_cannot_be_trusted_or_reached(smtp, secret):
    settings = mail_settings(smtp)
    secure = EmailSettings(host="127.0.0.1", port=settings.port, sender=settings.sender, to=settings.to)
    with pytest.raises(Fatal, match="cannot do what is configured"):
        send(notice(), secure)  # it offers no STARTTLS
    with pytest.raises(Fatal, match="cannot do what is configured"):
        send(notice(), mail_settings(smtp, user="jo", password=secret("hush-hush")))
    smtp.shutdown()
    smtp.server_close()
    with pytest.raises(Transient):
        send(notice(), settings)


def test_settings_of_mail_are_checked():
    with pytest.raises(ValueError, match="for this machine alone"):
        EmailSettings(host="smtp.example.com", sender="a@b.c", to=("d@e.f",), security="none")
    with pytest.raises(ValueError, match="belong together"):
        EmailSettings(host="smtp.example.com", sender="a@b.c", to=("d@e.f",), user="jo")
    with pytest.raises(ValueError, match="must be an address"):
        EmailSettings(host="smtp.example.com", sender="a@b.c\nBcc: x@y.z", to=("d@e.f",))


def test_the_log_is_as_severe_as_the_alert():
    with structlog.testing.capture_logs() as lines:
        for one in (notice(), notice(severity="warning"), notice("acknowledged", by="jo"), notice("resolved")):
            asyncio.run(Log().tell(one))
    found = [(line["event"], line["log_level"]) for line in lines]
    assert found == [
        ("alert.firing", "error"),
        ("alert.firing", "warning"),
        ("alert.acknowledged", "info"),
        ("alert.resolved", "info"),
    ]


def test_a_notice_is_bounded_and_inert():
    one = notice(says="x" * 5_000, facts={"\x07bell": "\x1b[2J" * 500})
    assert isinstance(one, Notice)
    assert len(one.says) == 1_000
    assert all("\x1b" not in value and len(value) <= 200 for value in one.facts.values())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A key and a certificate of 127.0.0.1 that signed itself."""
    import ipaddress
    from datetime import timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=True)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    text = serialization.PrivateFormat.PKCS8
    secret = key.private_bytes(serialization.Encoding.PEM, text, serialization.NoEncryption())
    file.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    return file


@contextlib.contextmanager
def mail_server(certificate, *, at_once: bool):
    """A mail server that wants TLS: from the first byte, or by STARTTLS before anything else; and a password."""
    smtp = pytest.importorskip("aiosmtpd.smtp")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    taken, stop = [], threading.Event()
    ports: queue.SimpleQueue[int] = queue.SimpleQueue()

    class Handler:
        async def handle_DATA(self, server, session, envelope):  # noqa: N802 - the library's name
            taken.append((session.ssl is not None or at_once, session.auth_data, envelope.content))
            return "250 OK"

    def signs_in(server, session, envelope, mechanism, data):
        return smtp.AuthResult(success=data.password == b"hush-hush", auth_data=data.login)

    def spoken():
        ways = {"auth_require_tls": False} if at_once else {"tls_context": context, "require_starttls": True}
        return smtp.SMTP(Handler(), authenticator=signs_in, auth_required=True, **ways)

    async def serve():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(spoken, "127.0.0.1", 0, ssl=context if at_once else None)
        ports.put(server.sockets[0].getsockname()[1])
        await asyncio.to_thread(stop.wait)
        server.close()

    running = threading.Thread(target=lambda: asyncio.run(serve()))
    running.start()
    try:
        yield ports.get(timeout=10), taken
    finally:
        stop.set()
        running.join()


@pytest.mark.parametrize("security", ["starttls", "tls"])
@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")
def test_a_mail_goes_encrypted_and_signed_in(security, certificate, monkeypatch, secret):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with mail_server(certificate, at_once=security == "tls") as (port, taken):
        settings = EmailSettings(
            host="127.0.0.1",
            port=port,
            sender="penstock@example.com",
            to=("ops@example.com",),
            security=security,
            user="penstock",
            password=secret("hush-hush"),
        )
        send(notice(), settings)
        (found,) = taken
        assert found[:2] == (True, b"penstock")
        assert b"Subject: " in found[2]
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(Transient, match="certificate verify failed"):
            send(notice(), settings)
        assert len(taken) == 1
