"""Every error Ergon raises, in one tree.

::

    ErgonError
    ├── ConfigurationError (ValueError)      refused before anything was started
    │   ├── SettingsError                    a settings file or an environment variable
    │   ├── WiringError                      parts that do not fit together
    │   │   └── HookError (TypeError)        a hook that is missing or of the wrong colour
    │   └── MissingExtraError (ImportError)  an optional dependency is not installed
    ├── EnvelopeError (ValueError)           a transaction with an invalid field
    │   └── FrozenError (AttributeError)     … or an attempt to change one
    ├── PayloadError (ValueError)            a payload the connector cannot serialise
    ├── ConnectorError                       a connector refuses: closed, full, locked, …
    │   └── ChannelLostError                 … to settle on a channel that is gone
    ├── TransactionException                 one transaction failed, with its category
    │   ├── NonRetryableException            … and trying again is useless
    │   └── TransactionTimeoutException      … because an engine deadline passed
    ├── FetchException                       the connector could not be read
    │   └── FetchTimeoutException (TimeoutError)
    ├── InputException                       the iterable given to a producer raised
    ├── StoreError                           a store refuses, or cannot do what it was asked
    │   ├── StoreUnavailableError            … for now: locked, unreachable, closed
    │   ├── StoreFullError                   … because its disk is full
    │   ├── StoreReadOnlyError               … because it may only be read
    │   ├── StoreUnsafeError                 … because another user may have put its file there
    │   ├── StoreBrokenError                 … because a write may not have reached the disk
    │   ├── StoreSchemaError                 … because its tables are foreign, too old or too new
    │   └── UnreadableJobError               … because the row of a job cannot be read
    ├── JobError (ValueError)                a job, queue or schedule that is refused at the edge
    │   ├── DuplicateJobError                its id or its unique key is taken
    │   ├── JobStateError                    its state does not allow what was asked
    │   └── JobNotFoundError (LookupError)   there is no such job, queue or schedule
    ├── JobFailedError                       the job whose result was asked for did not complete
    ├── ResultTimeoutError (TimeoutError)    no result within the time given; the job goes on
    ├── BoundaryError                        a zone's node refuses, with a code and a reason
    │   ├── FactInvalidError (ValueError)    … a field, whose path it names
    │   ├── ConflictingDuplicateError        … an id that stands for other content already
    │   ├── ObjectConflictError              … a key that stands for other bytes already
    │   ├── ArtifactError                    … a fact whose artifact is not there or is another one
    │   ├── NotPermittedError                … a caller it does not know, or who may not do this
    │   ├── BoundaryNotFoundError (LookupError)  there is no such fact, consumer, object or log
    │   ├── ConsumerHeldError                another process runs under this consumer's name
    │   ├── BufferFullError                  … because its log may not grow further for now
    │   ├── DataLossError                    what was stored is not what was acknowledged
    │   └── NodeUnavailableError             … for now: stopping, sealed, unreachable, disk trouble
    └── LoopTimeoutException (TimeoutError)  a whole call ran out of time
        ├── ConsumerLoopTimeoutException
        └── ProducerLoopTimeoutException

A message says what was wrong and where; ``remedy`` says what to do. ``code`` is stable and may be
matched by programs; the text may not.
"""

from __future__ import annotations

from ergon_framework.errors.base import (
    ChannelLostError,
    ConfigurationError,
    ConnectorError,
    EnvelopeError,
    ErgonError,
    FrozenError,
    HookError,
    MissingExtraError,
    PayloadError,
    SettingsError,
    WiringError,
    describe,
    name_of,
    plain,
    text_of,
)
from ergon_framework.errors.boundary import (
    ArtifactError,
    BoundaryError,
    BoundaryNotFoundError,
    BufferFullError,
    ConflictingDuplicateError,
    ConsumerHeldError,
    DataLossError,
    FactInvalidError,
    NodeUnavailableError,
    NotPermittedError,
    ObjectConflictError,
)
from ergon_framework.errors.stores import (
    DuplicateJobError,
    JobError,
    JobFailedError,
    JobNotFoundError,
    JobStateError,
    ResultTimeoutError,
    StoreBrokenError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreSchemaError,
    StoreUnavailableError,
    StoreUnsafeError,
    UnreadableJobError,
)
from ergon_framework.errors.transactions import (
    ConsumerLoopTimeoutException,
    ExceptionCategory,
    ExceptionType,
    FetchException,
    FetchTimeoutException,
    InputException,
    LoopTimeoutException,
    NonRetryableException,
    ProducerLoopTimeoutException,
    TransactionException,
    TransactionTimeoutException,
)

__all__ = [
    "ArtifactError",
    "BoundaryError",
    "BoundaryNotFoundError",
    "BufferFullError",
    "ChannelLostError",
    "ConfigurationError",
    "ConflictingDuplicateError",
    "ConnectorError",
    "ConsumerHeldError",
    "ConsumerLoopTimeoutException",
    "DataLossError",
    "DuplicateJobError",
    "EnvelopeError",
    "ErgonError",
    "ExceptionCategory",
    "ExceptionType",
    "FactInvalidError",
    "FetchException",
    "FetchTimeoutException",
    "FrozenError",
    "HookError",
    "InputException",
    "JobError",
    "JobFailedError",
    "JobNotFoundError",
    "JobStateError",
    "LoopTimeoutException",
    "MissingExtraError",
    "NodeUnavailableError",
    "NonRetryableException",
    "NotPermittedError",
    "ObjectConflictError",
    "PayloadError",
    "ProducerLoopTimeoutException",
    "ResultTimeoutError",
    "SettingsError",
    "StoreBrokenError",
    "StoreError",
    "StoreFullError",
    "StoreReadOnlyError",
    "StoreSchemaError",
    "StoreUnavailableError",
    "StoreUnsafeError",
    "TransactionException",
    "TransactionTimeoutException",
    "UnreadableJobError",
    "WiringError",
    "describe",
    "name_of",
    "plain",
    "text_of",
]
