"""What a server that was reached before says when it is to be reached again."""

from __future__ import annotations

from ergon_framework.errors import ErgonError, StoreError, StoreUnavailableError


def told_again(error: ErgonError) -> StoreError:
    """The error of a server that let us in before, and now does not.

    The URL was right then: a certificate that has expired, a password that was changed or a file
    that is being renewed is mended while programs run, so they wait as for a server that is away.
    Nothing was asked on a connection that did not come about, so nothing of it was lost.
    """
    if isinstance(error, StoreError):
        return error
    return StoreUnavailableError(
        error.message, remedy=error.remedy, details=error.details | {"is_lost": False}
    )
