"""What is wrong about TLS when no connection to PostgreSQL came about, by what libpq says."""

from __future__ import annotations

from ergon_framework.errors import ConfigurationError
from ergon_framework.storage import tls

OPTIONS = tls.Options(
    "?sslmode=verify-full&sslrootcert=FILE", "?sslcert=FILE&sslkey=FILE", "?sslmode=disable"
)
_NO_AUTHORITY = "root certificate file"
_NO_FILE = ("private key file", "certificate file", "weak sslmode")
_NO_TLS = "server does not support SSL"
_ENCRYPTED = "no encryption"  # what the server found missing


def fault_of(name: str, text: str) -> ConfigurationError | None:
    """The error for it; None when it is about something else."""
    said = text.splitlines()[0] if text else ""
    if _NO_AUTHORITY in said and "does not exist" in said:
        return ConfigurationError(
            f"nobody is named here whom the certificate of {name} could be checked against",
            remedy=f"name the file of the authority that signed it: {OPTIONS.authority}; with"
            " sslrootcert=system, those count that this machine trusts",
        )
    if any(each in said for each in _NO_FILE):
        reason = said.rpartition(" failed: ")[2][:300]
        return ConfigurationError(
            f"a file that the URL of {name} names for TLS cannot be used: {reason}",
            remedy=f"correct it ({OPTIONS.authority}, {OPTIONS.own}); a key may be readable for"
            " this user only (chmod 600)",
        )
    if _NO_TLS in text:
        return ConfigurationError(
            f"{name} does not speak TLS, and the connection must be encrypted: nothing was sent",
            remedy="turn TLS on in the server (ssl = on) or, on a network where nobody reads along,"
            f" write {OPTIONS.plain} in the URL",
        )
    if _ENCRYPTED in text:
        return ConfigurationError(
            f"{name} lets this user in with TLS only, or not at all",
            remedy=f"write {OPTIONS.authority} in the URL, or correct the user and the database",
        )
    return tls.refused(name, text, OPTIONS)
