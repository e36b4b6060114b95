"""Every error a user can meet, as one small tree.

    GristmillError
    ├── UsageError            (ValueError)    a call or a command was written wrongly; nothing was started
    │   ├── EndlessStreamError (TypeError)    the length of an endless stream was asked for
    │   ├── NoStateError      (AttributeError) the state of an object without one was asked for
    │   └── OutOfRangeError   (IndexError)    a row or a step does not exist
    ├── SampleError           (ValueError)    a sample of a stream cannot be decoded or transformed
    ├── SetupError            (RuntimeError)  no worker could be set up
    ├── ClusterError          (RuntimeError)  a cluster cannot run the job: environment, storage or resources
    ├── WorkerDiedError       (RuntimeError)  an item ended every process that ran it
    ├── OutOfMemoryError      (MemoryError)   an item needs more memory than there is
    ├── ItemTimeoutError      (TimeoutError)  an item took longer than its timeout
    ├── UnpicklableError      (TypeError)     something cannot be sent to or from a worker
    ├── RemoteError           (RuntimeError)  replaces a worker's exception that could not be sent
    ├── CorruptStreamError    (ValueError)    a compressed stream ends too early or is damaged
    ├── RemoteStoreError      (RuntimeError)  a remote store does not answer, after all retries
    │   └── StoreRefusedError                 it refuses, and a retry would not help
    ├── DamagedDatasetError   (RuntimeError)  the files on disk are not what the manifest says
    │   └── DamagedWorkError                  intermediate data of a run is not what its tasks wrote
    ├── FolderLockedError     (RuntimeError)  another run works in the folder
    ├── NotUpToDateError      (RuntimeError)  the output holds a dataset of another recipe or of other inputs
    └── StoppedError          (RuntimeError)  a run was stopped on purpose; finished work is kept
        ├── SourceChangedError                an input file has changed since the run was planned
        ├── LeaseLostError                    another run has taken over the output
        ├── StalledError                      no task made progress for too long
        ├── TooManyBadError                   one record after another cannot be used
        ├── QuarantineError                   more records were quarantined than the recipe allows
        ├── EmptyDatasetError                 no record is left
        ├── TooManyDuplicatesError            more documents are copies than the recipe allows
        ├── LowUtilisationError               packed rows hold more padding than the recipe allows
        ├── ParityError                       a fast way gave another result than its reference
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
    """The length of an endless stream was asked for. A TypeError, as for every object without a length."""


class NoStateError(UsageError, AttributeError):
    """The state of an object that has none was asked for. An AttributeError, so that `hasattr` answers False."""


class OutOfRangeError(UsageError, IndexError):
    """A row or a step was asked for that does not exist."""


class SampleError(GristmillError, ValueError):
    """A sample of a stream cannot be decoded or transformed."""


class SetupError(GristmillError, RuntimeError):
    """No worker could be set up: its start, its imports or the `setup` function failed each time."""


class ClusterError(GristmillError, RuntimeError):
    """A cluster cannot run the job: a node has another environment or other files, or there is no room for a worker."""

    is_final = True


class WorkerDiedError(GristmillError, RuntimeError):
    """An item ended every process that ran it, the last ones alone on the machine."""


class OutOfMemoryError(GristmillError, MemoryError):
    """An item was killed for lack of memory even when it ran alone."""


class ItemTimeoutError(GristmillError, TimeoutError):
    """An item ran longer than its `timeout`; its worker was killed and replaced."""


class UnpicklableError(GristmillError, TypeError):
    """A function, an argument or a result cannot be sent between processes."""


class RemoteError(GristmillError, RuntimeError):
    """Replaces an exception of a worker that could not itself be sent; the message names it."""


class CorruptStreamError(GristmillError, ValueError):
    """A compressed stream ends too early (`context["truncated"]`) or is damaged.

    `context["num_bytes"]` bytes of content were readable before that; `context["num_unread"]` bytes of the file were
    not read because of it.
    """


class RemoteStoreError(GristmillError, RuntimeError):
    """A remote store does not answer, after all retries.

    Not an OSError: readers treat an OSError as a damaged file, and a lost connection must never look like one.
    """


class StoreRefusedError(RemoteStoreError):
    """A remote store refuses: credentials are missing or insufficient. A retry would not help."""

    is_final = True


class DamagedDatasetError(GristmillError, RuntimeError):
    """The files on disk are not what the manifest says."""


class DamagedWorkError(DamagedDatasetError):
    """Intermediate data of a run is not what its tasks wrote; `context["file"]` names the file.

    The run does the task again that wrote it, so it is raised only if that does not help.
    """

    is_final = True


class FolderLockedError(GristmillError, RuntimeError):
    """Another run works in the folder."""


class NotUpToDateError(GristmillError, RuntimeError):
    """The output holds a dataset of another recipe or of other inputs."""


class StoppedError(GristmillError, RuntimeError):
    """A run was stopped on purpose, because a retry would end the same way. Finished work is kept."""

    is_final = True
    """Whether the engine never retries a task that raised this."""


class SourceChangedError(StoppedError):
    """An input file has changed since the run was planned."""


class LeaseLostError(StoppedError):
    """Another run has taken over the output. This one ends, and deletes nothing."""


class StalledError(StoppedError):
    """No task made progress for longer than the run allows."""


class TooManyBadError(StoppedError):
    """One record after another cannot be used: something is wrong with the input or a step, not with a record."""


class QuarantineError(StoppedError):
    """More records were quarantined than the recipe allows."""


class EmptyDatasetError(StoppedError):
    """No record is left after a run. Nothing is published; `allow_empty: true` publishes the empty dataset."""


class TooManyDuplicatesError(StoppedError):
    """More documents of a source are copies than the recipe allows, or too many are copies of one."""


class TooMuchContaminationError(StoppedError):
    """More documents of a source hold items of benchmarks than the recipe allows."""


class LowUtilisationError(StoppedError):
    """Packed rows hold more padding than the recipe allows."""


class ParityError(StoppedError):
    """A fast way gave another result than its reference: ids of an engine, or texts of a traced template.

    Nothing of the task is kept.
    """


class BooksError(StoppedError):
    """Records went in that did not come out anywhere."""


def install_command(extra: str) -> str:
    """Write the command that installs an extra. No package index has this project yet, so it names the clone."""
    return f"in the clone of Gristmill: pip install '.[{extra}]'"
