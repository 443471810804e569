"""Why no connection to a server came about: TLS problems as errors of our own, and reconnecting.

Drivers pass on what OpenSSL says, each in its own wrapping. The text is what they have in common.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass

from ergon_framework.errors import ConfigurationError, ErgonError, StoreError, StoreUnavailableError

_WRONG_NAME = ("hostname mismatch", "ip address mismatch", "does not match host name")
_WRONG_TIME = ("certificate has expired", "certificate is not yet valid")
_UNTRUSTED = (
    *("certificate verify failed", "certificate_verify_failed", "self-signed certificate"),
    *("self signed certificate", "unable to get local issuer"),
)
_OURS = (  # alerts that the server sends about the certificate of the client
    *("certificate required", "certificate_required", "bad certificate", "bad_certificate"),
    *("alert unknown ca", "alert_unknown_ca", "alert handshake failure", "alert_handshake_failure"),
    *("certificate unknown", "certificate_unknown", "certificate expired", "certificate_expired"),
)
_PLAIN = (
    *("wrong version number", "wrong_version_number", "record layer failure"),
    *("record_layer_failure", "does not support ssl"),
)


class LockedKeyError(OSError):
    """A key has a passphrase: without one at hand, OpenSSL would ask on the terminal, and wait."""


@dataclass(frozen=True, slots=True)
class Options:
    """How the options of a URL are called that are about TLS."""

    authority: str
    """Names the file of the authority that signed the server's certificate."""
    own: str
    """Name the files of our own certificate and its key."""
    plain: str
    """What to write for a server without TLS."""


def refused(name: str, text: str, options: Options) -> ConfigurationError | None:
    """The error for what is wrong about TLS, by the text of the driver's; None for anything else.

    What the name is about comes first: a driver may say both.
    """
    said = text.lower()
    # Checked before an untrusted certificate: OpenSSL reports a wrong host name as a failed
    # verification, too.
    if _has(said, _WRONG_NAME):
        return ConfigurationError(
            f"the certificate of {name} was made out to another name",
            remedy="write the host in the URL as the certificate has it, or have one made out to"
            " this name",
        )
    if _has(said, _WRONG_TIME):
        return ConfigurationError(
            f"the certificate of {name} is not valid now: it has expired, or is not valid yet",
            remedy="renew it on the server; if it is new, look at the clock of this machine",
        )
    if _has(said, _UNTRUSTED):
        return ConfigurationError(
            f"the certificate of {name} was signed by nobody who is trusted here",
            remedy=f"name the file of the authority that signed it: {options.authority}",
        )
    if _has(said, _OURS):
        return ConfigurationError(
            f"{name} wants a certificate of ours, and did not accept what it got",
            remedy=f"name one that an authority of the server signed, and its key: {options.own}",
        )
    return plain(name, options) if _has(said, _PLAIN) else None


def plain(name: str, options: Options) -> ConfigurationError:
    """The error of a server that answers, but not with TLS."""
    return ConfigurationError(
        f"the URL asks for TLS, and {name} does not speak it there: nothing was sent",
        remedy="turn TLS on in the server, or write the port on which it has it;"
        f" {options.plain} is for a server without",
    )


def context_of(
    options: Options,
    authority: str | None = None,
    certificate: str | None = None,
    key: str | None = None,
) -> ssl.SSLContext:
    """A context that checks the server's certificate and name, from the files that a URL names."""
    context = ssl.create_default_context()
    try:
        if authority is not None:
            context.load_verify_locations(authority)
    except (OSError, ValueError) as error:
        raise unreadable(options.authority, error) from error
    try:
        if certificate is not None:
            context.load_cert_chain(certificate, key, no_passphrase)
    except LockedKeyError as error:
        raise _locked(options.own) from error
    except (OSError, ValueError) as error:
        raise unreadable(options.own, error) from error
    return context


def tls_alert_of(line: socket.socket, context: ssl.SSLContext, host: str) -> str:
    """What a server says about our certificate after the handshake; nothing when it accepts it.

    The server sends its alert after the handshake and closes the connection. A client that sends
    something meanwhile gets a reset instead, and never reads the alert: so nothing is sent here.
    """
    try:
        # Reading ends with the alert, with the end of the connection, or with the socket's timeout
        # when the server has nothing to say.
        with context.wrap_socket(line, server_hostname=host) as wrapped:
            wrapped.recv(1)
    except OSError as error:
        return str(error)
    return ""


def no_passphrase() -> str:
    """What OpenSSL calls for the passphrase of a key."""
    raise LockedKeyError("the key has a passphrase")


def _locked(option: str) -> ConfigurationError:
    return ConfigurationError(
        f"what the URL names by {option} cannot be used: the key has a passphrase, and there is"
        " nobody to ask for it",
        remedy="name a key without one, which this user alone may read: openssl pkey -in KEY -out"
        " NEW, chmod 600 NEW",
    )


def unreadable(option: str, error: OSError | ValueError) -> ConfigurationError:
    """The error of a file that an option names and that cannot be used."""
    reason = error.strerror if isinstance(error, OSError) else None
    if isinstance(error, ssl.SSLError):
        reason = "it is no certificate, or the key is not the one that belongs to it"
    return ConfigurationError(
        f"what the URL names by {option} cannot be used: {reason or error}",
        remedy="name files in the PEM format that this user may read",
    )


def _has(text: str, words: Iterable[str]) -> bool:
    return any(each in text for each in words)


def as_unavailable(error: ErgonError) -> StoreError:
    """The error of a server that let us in before, and now does not.

    The URL was right then: a certificate that has expired, a password that was changed or a file
    that is being renewed is fixed while programs run, so they wait as for a server that is away.
    Nothing was asked on a connection that did not come about, so nothing of it was lost.
    """
    if isinstance(error, StoreError):
        return error
    # Not lost: a caller may repeat without asking first whether the work was done.
    return StoreUnavailableError(
        error.message, remedy=error.remedy, details=error.details | {"is_lost": False}
    )
