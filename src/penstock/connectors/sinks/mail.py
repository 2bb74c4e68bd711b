"""E-mail: one message for each change, in one thread for each alert. It blocks, and is called off the event loop."""

from __future__ import annotations

import smtplib
import ssl
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime

from penstock.connectors.sinks.notice import Notice
from penstock.model.errors import Fatal, Rejected, Transient
from penstock.settings.alerts import EmailSettings

_SECONDS = 20.0
_PORTS = {"starttls": 587, "tls": 465, "none": 25}
_FOR_EVER = range(500, 600)


def message(notice: Notice, settings: EmailSettings) -> EmailMessage:
    """The mail. Its id is made of the change, so that a repetition is known as one."""
    host = settings.sender.rpartition("@")[2]
    made = EmailMessage(policy=SMTP)
    made["Subject"] = notice.title
    made["From"] = settings.sender
    made["To"] = ", ".join(settings.to)
    made["Date"] = format_datetime(notice.at)
    made["Message-ID"] = f"<{notice.id}@{host}>"
    made["References"] = f"<{notice.thread}@{host}>"
    made["In-Reply-To"] = f"<{notice.thread}@{host}>"
    made["Auto-Submitted"] = "auto-generated"
    if notice.severity == "critical" and notice.change == "firing":
        made["Importance"] = "high"
    facts = [f"{name}: {value}" for name, value in notice.facts.items()]
    made.set_content("\n".join([*notice.lines, *(["", *facts] if facts else [])]) + "\n")
    return made


def send(notice: Notice, settings: EmailSettings) -> None:
    """Hand the mail to the server. Raises Transient, Rejected or Fatal."""
    password = None if settings.password is None else settings.password.reveal()
    try:
        with _connected(settings) as server:
            if settings.user is not None and password is not None:
                server.login(settings.user, password)
            server.send_message(message(notice, settings), settings.sender, list(settings.to))
    except smtplib.SMTPAuthenticationError as error:
        raise Fatal(f"{settings.host} refuses the password of {settings.user}: {error.smtp_code}") from error
    except smtplib.SMTPRecipientsRefused as error:
        codes = {code for code, _ in error.recipients.values()}
        text = f"{settings.host} refuses {', '.join(sorted(error.recipients))}"
        raise (Rejected if all(code in _FOR_EVER for code in codes) else Transient)(text) from error
    except smtplib.SMTPResponseException as error:
        text = f"{settings.host} said {error.smtp_code} {error.smtp_error!r:.200}"
        raise (Rejected if error.smtp_code in _FOR_EVER else Transient)(text) from error
    except smtplib.SMTPNotSupportedError as error:
        raise Fatal(f"{settings.host} cannot do what is configured: {error}") from error
    except (OSError, smtplib.SMTPException) as error:
        raise Transient(f"{settings.host}: {error}") from error


def _connected(settings: EmailSettings) -> smtplib.SMTP:
    port = settings.port or _PORTS[settings.security]
    if settings.security == "tls":
        return smtplib.SMTP_SSL(settings.host, port, timeout=_SECONDS, context=ssl.create_default_context())
    server = smtplib.SMTP(settings.host, port, timeout=_SECONDS)
    if settings.security == "starttls":
        try:
            server.starttls(context=ssl.create_default_context())
        except BaseException:
            server.close()
            raise
    return server
