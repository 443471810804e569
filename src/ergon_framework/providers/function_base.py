"""``ProviderBase`` over functions: an attempt calls the function that its operation names.

Two providers, one for each colour, share one runtime: a circuit that plain calls opened is open for
async ones too, and both take from one quota.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ergon_framework.ports.providerstore import ProviderStore
from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.errors import ProviderBadRequestError
from ergon_framework.providers.execution import ProviderExecutionContext
from ergon_framework.providers.mapping import Rule
from ergon_framework.providers.signatures import FunctionAttempt
from ergon_framework.providers.store_urls import hold_store

ATTEMPT = "ergon.attempt"
"""The metadata of a call that is no function: what makes its attempts, given their context."""


class FunctionProvider(ProviderBase):
    """Plain functions, each under the name of its operation."""

    def __init__(
        self,
        name: str,
        capability: str,
        attempts: Mapping[str, FunctionAttempt],
        rules: Sequence[Rule],
        *,
        store: str | ProviderStore | None = None,
        **options: Any,
    ) -> None:
        self.provider_name, self.capability = name, capability
        self.error_rules = tuple(rules)
        self.attempts = attempts
        # Who closes it also lets go of the store.
        super().__init__(store=None if store is None else hold_store(store, self), **options)

    def _execute_impl(
        self,
        *,
        tenant_id: str,
        campaign_id: str | None,
        operation: str,
        payload: dict[str, Any],
        context: ProviderExecutionContext,
    ) -> Any:
        own = _own_attempt(context)
        if own is not None:
            return own(context)
        return _find(self, self.attempts, operation, is_async=False)(payload, context)


class AsyncFunctionProvider(ProviderBase):
    """Async functions, with the circuits, quotas and store of the plain ones."""

    def __init__(self, plain: FunctionProvider) -> None:
        # Without ProviderBase.__init__, which would build a second runtime.
        self.provider_name, self.capability = plain.provider_name, plain.capability
        self.error_rules = plain.error_rules
        self.attempts = plain.attempts
        self._runtime = plain.runtime.of_other_colour()

    async def _execute_impl(
        self,
        *,
        tenant_id: str,
        campaign_id: str | None,
        operation: str,
        payload: dict[str, Any],
        context: ProviderExecutionContext,
    ) -> Any:
        own = _own_attempt(context)
        if own is not None:
            return await own(context)
        return await _find(self, self.attempts, operation, is_async=True).acall(payload, context)


def _own_attempt(context: ProviderExecutionContext) -> Callable[..., Any] | None:
    return context.metadata.get(ATTEMPT) if context.metadata else None


def _find(
    provider: ProviderBase,
    attempts: Mapping[str, FunctionAttempt],
    operation: str,
    *,
    is_async: bool,
) -> FunctionAttempt:
    found = attempts.get(operation)
    if found is not None and found.is_async == is_async and not found.is_stream:
        return found
    colour = "async" if is_async else "plain"
    raise ProviderBadRequestError(
        f"the provider {provider.provider_name!r} has no {colour} function for the operation"
        f" {operation!r}",
        never_sent=True,
        remedy="declare one with @provider.call before the call is made",
    )
