"""Every error a user can meet, as one small tree.

    GristmillError
    ├── UsageError            (ValueError)    a call or a command was written wrongly; nothing was started
    │   ├── EndlessStreamError (TypeError)    the length of what has no end
    │   ├── NoStateError      (AttributeError) the state of what has none
    │   └── OutOfRangeError   (IndexError)    a row or a step that is not there
    ├── SetupError            (RuntimeError)  no worker could be made ready
    ├── WorkerDiedError       (RuntimeError)  an item ended every process that ran it
    ├── OutOfMemoryError      (MemoryError)   an item needs more memory than there is
    ├── ItemTimeoutError      (TimeoutError)  an item took longer than its timeout
    ├── UnpicklableError      (TypeError)     something cannot be sent to or from a worker
    ├── RemoteError           (RuntimeError)  stands for a worker's exception that could not travel
    ├── CorruptStreamError    (ValueError)    a compressed stream ends too early or is damaged
    ├── RemoteStoreError      (RuntimeError)  a store behind a URL does not answer, however often it is asked
    │   └── StoreRefusedError                 it answers, and asking again would not help
    ├── DamagedDatasetError   (RuntimeError)  what is on disk is not what the manifest says
    ├── FolderLockedError     (RuntimeError)  another run works in the folder
    ├── NotUpToDateError      (RuntimeError)  the output holds a dataset of another recipe or of other inputs
    └── StoppedError          (RuntimeError)  a run was stopped on purpose; what it had finished is kept
        ├── SourceChangedError                an input file is not what it was when the run was planned
        ├── TooManyBadError                   one record after another cannot be used
        ├── QuarantineError                   more records were set aside than the recipe allows
        ├── TooManyDuplicatesError            more documents are copies than the recipe allows
        ├── LowUtilisationError               packed rows hold more padding than the recipe allows
        ├── ParityError                       the fast tokenizer engine gave other ids than the reference
        └── BooksError                        records went in that did not come out anywhere

The message comes first and context as keywords, so that an error survives pickling (an exception whose
`__init__` takes anything else breaks the process that unpickles it).
"""

from __future__ import annotations


class GristmillError(Exception):
    """Base of all errors raised on purpose: what happened, what to do (`help`), and where (`context`).

    >>> error = UsageError("workers must be at least 1, not 0", help='use workers="auto"', workers=0)
    >>> error.help, error.context
    ('use workers="auto"', {'workers': 0})
    """

    def __init__(self, message: str, *, help: str | None = None, **context: object) -> None:
        super().__init__(message)
        self.message = message
        self.help = help
        self.context = context

    def __str__(self) -> str:
        return f"{self.message}\n  help: {self.help}" if self.help else self.message


class UsageError(GristmillError, ValueError):
    """A call or a command was written wrongly. Raised before any work starts."""


class EndlessStreamError(UsageError, TypeError):
    """The length of a stream without an end was asked for. A TypeError, as of whatever has no length."""


class NoStateError(UsageError, AttributeError):
    """The state of something that cannot know it. An AttributeError: who asks whether it has one is told no."""


class OutOfRangeError(UsageError, IndexError):
    """A row or a step was asked for that is not there."""


class SetupError(GristmillError, RuntimeError):
    """No worker could be made ready: its start, its imports or the `setup` function failed each time."""


class WorkerDiedError(GristmillError, RuntimeError):
    """An item ended every process that ran it, the last ones alone on the machine."""


class OutOfMemoryError(GristmillError, MemoryError):
    """An item was killed for lack of memory even when it ran alone."""


class ItemTimeoutError(GristmillError, TimeoutError):
    """An item ran longer than its `timeout`; its worker was killed and replaced."""


class UnpicklableError(GristmillError, TypeError):
    """A function, an argument or a result cannot be sent between processes."""


class RemoteError(GristmillError, RuntimeError):
    """Stands for an exception raised in a worker that could not itself be sent; named in the message."""


class CorruptStreamError(GristmillError, ValueError):
    """A compressed stream ends too early (`context["truncated"]`) or is damaged.

    `context["num_bytes"]` were read well before that.
    """


class RemoteStoreError(GristmillError, RuntimeError):
    """A store behind a URL does not answer, however often it was asked.

    No OSError: what readers take for damage of a file must never be a lost connection.
    """


class StoreRefusedError(RemoteStoreError):
    """A store refuses: no credentials, or none that suffice. Asking again would not help."""

    is_final = True


class DamagedDatasetError(GristmillError, RuntimeError):
    """What is on disk is not what the manifest says."""


class FolderLockedError(GristmillError, RuntimeError):
    """Another run works in the folder."""


class NotUpToDateError(GristmillError, RuntimeError):
    """The output holds a dataset of another recipe or of other inputs."""


class StoppedError(GristmillError, RuntimeError):
    """A run was stopped on purpose: trying again would find the same. What it had finished is kept."""

    is_final = True
    """The engine does not try a task again that raised this."""


class SourceChangedError(StoppedError):
    """An input file is not what it was when the run was planned."""


class TooManyBadError(StoppedError):
    """One record after another cannot be used: something is wrong with the input or a step, not with a record."""


class QuarantineError(StoppedError):
    """More records were set aside than the recipe allows."""


class EmptyDatasetError(StoppedError):
    """No record is left of a run. Nothing is published; `allow_empty: true` publishes it without work."""


class TooManyDuplicatesError(StoppedError):
    """A source would lose more documents as copies than the recipe allows, or so many are said to be one."""


class LowUtilisationError(StoppedError):
    """Packed rows hold more padding than the recipe allows."""


class ParityError(StoppedError):
    """The fast tokenizer engine gave other ids than the reference for a document. Nothing of its task is kept."""


class BooksError(StoppedError):
    """Records went in that did not come out anywhere."""
