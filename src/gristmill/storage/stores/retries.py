"""Requests to remote stores: retried where that may help, refused at once where it does not, with readable errors.

A request that fails because of the connection (a reset, a timeout, a busy or broken server) is made up to `TRIES`
times, with waits that double from half a second to four: 20 seconds in all. Each wait is up to a half longer or
shorter, so that many workers do not come back together. If every second connection breaks, 400 of 100,000 requests
still fail after that. If a store that has never answered cannot be reached at all, because its name is unknown or the
connection was refused, `TRIES_UNREACHED` attempts are made: most likely its address is wrong. An answer that will not
change (no such file, no permission, no credentials) is final.

Each library raises its own errors for all this. The kind of an error is recognized by its builtin base, its HTTP status
or its name, so none of the libraries is imported here. `wait_clock` counts how long this process has waited for stores,
and how much it has read, for the summary of a run.
"""

from __future__ import annotations

import logging
import os
import random
import re
import socket
import time
from contextlib import contextmanager
from http import HTTPStatus
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from gristmill.core.errors import (
    GristmillError,
    RemoteStoreError,
    SourceChangedError,
    StoreRefusedError,
    UsageError,
)
from gristmill.storage.stores.credentials import describe_credentials, find_options
from gristmill.storage.urls import find_protocol, redact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

INTERMEDIATE_DATA = ".gristmill/stored"
"""The folder of what one stage leaves for the next; reads of it are counted separately, too."""
TRIES = 8
TRIES_UNREACHED = 3
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 4.0
_STATUS = re.compile(r"status code: ([1-5][0-9][0-9])")
"""How obstore says which status a server returned."""
_ANSWER = re.compile(r"<Code>([^<]*)</Code>.*?<Message>([^<]*)</Message>", re.DOTALL)

_BUSY = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
_UNREACHED_TEXT = "kind: Connect,"
"""How obstore says that there was no connection."""
_UNREACHED = ("ConnectTimeout", "ConnectTimeoutError", "ClientConnectorError")
"""Errors before a connection is made, like unknown names and refusals. botocore's own class can also mean a reset."""
_HALF_ANSWERS = ("JSONDecodeError", "ResponseParserError")
"""ValueErrors that a truncated answer causes; other ValueErrors mean that the request was wrong."""
_BROKEN_ANSWERS = ("HttpProcessingError",)
"""Errors of aiohttp for an answer that breaks off or is not HTTP. Their status, 400, was not sent by the server."""
_NO_CREDENTIALS = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "ProfileNotFound",
    "NoAuthTokenError",
    "TokenRetrievalError",
    "SSOTokenLoadError",
    "UnauthorizedSSOTokenError",
    "DefaultCredentialsError",
    "RefreshError",
    "LocalTokenNotFoundError",
)
_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; for a public bucket write "
    "storage_options: {anonymous: true}",
    "gs": "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or another identity in the environment",
    "hf": "run `hf auth login`, or set HF_TOKEN; request access to a gated dataset on its page",
}
_NETWORK = {
    "s3": "check the network, the name of the bucket and AWS_ENDPOINT_URL",
    "hf": "check the network, or download the files first with `hf download` and read that folder",
}
_ALIASES = {"s3a": "s3", "gcs": "gs"}
_CHECK_NETWORK = "check the network and the address; the same command resumes, finished work is kept"
_CHECK_RIGHTS = "check the credentials: they must allow listing and reading, and for an output writing and deleting"
_EXPIRED = "ExpiredToken"
"""How S3 calls temporary credentials whose time is over, in an answer with the status 400."""

T = TypeVar("T")

_log = logging.getLogger("gristmill")
_process: int | None = None
"""The process that has made the first request to a store."""


def ask_store(url: str, request: Callable[[], T], tries: int = TRIES, *, has_answered: bool = False) -> T:
    """Make a request and return its result; retry while that may help, up to `tries` attempts.

    With `has_answered` the store is known to exist: not to reach it is a passing fault, like a reset.

    Raises:
        UsageError: This process was forked from one that has used a store.
        FileNotFoundError: There is no such file, folder or bucket.
        StoreRefusedError: The credentials are missing or insufficient.
        RemoteStoreError: The store cannot be reached, or does not answer.
    """
    _refuse_in_fork(url)
    wait = FIRST_WAIT_SECONDS
    for attempt in range(1, tries + 1):
        try:
            return request()
        except GristmillError:
            raise
        except Exception as raised:
            error = _find_real_error(raised)
            if isinstance(error, FileNotFoundError):
                raise
            refusal = _make_refusal(url, error)
            if refusal is not None:
                raise refusal from error
            is_unreached = _is_unreached(error)
            if attempt >= min(tries, TRIES_UNREACHED if is_unreached and not has_answered else TRIES):
                problem = "it cannot be reached" if is_unreached else f"it does not answer, after {attempt} tries"
                raise RemoteStoreError(
                    f"{redact(url)}: {problem}: {_take_first_line(error)}",
                    help=_find_hint(url, _NETWORK, _CHECK_NETWORK),
                ) from error
            pause = wait * random.uniform(0.5, 1.5)
            _log.warning("%s: %s; trying again in %.1f s", redact(url), _take_first_line(error), pause)
        time.sleep(pause)
        wait = min(2 * wait, LONGEST_WAIT_SECONDS)
    raise AssertionError("the last attempt returns or raises")


def _refuse_in_fork(url: str) -> None:
    """Refuse a request of a forked process: the threads of all clients are in its parent, and it would wait forever."""
    global _process  # noqa: PLW0603  (one process has one set of threads)
    if find_protocol(url) == "memory":  # no client
        return
    _process = _process or os.getpid()
    if _process != os.getpid():
        raise UsageError(
            f"{redact(url)} cannot be used in a forked process: clients of stores work in its parent only",
            help='start workers with multiprocessing_context="spawn", as in DataLoader(dataset, '
            'multiprocessing_context="spawn")',
        )


def make_changed_error(url: str) -> SourceChangedError:
    """Make the error for an object that has changed while it was read."""
    return SourceChangedError(
        f"{redact(url)} has changed while it was read",
        help="run the same command again: it plans again and keeps what has not changed",
    )


def make_missing_bucket_error(bucket: str) -> UsageError:
    """Make the error for a bucket that does not exist, or not for these credentials."""
    return UsageError(f"{_describe(bucket)}: there is no such bucket", help="check its name, or create it")


def make_settings_error(url: str, error: Exception) -> StoreRefusedError:
    """Make the error for settings with which no request can be made."""
    return StoreRefusedError(f"{_describe(url)}: {_take_first_line(error)}", help=_find_hint(url, _CREDENTIALS))


def _find_real_error(error: Exception) -> Exception:
    """Return the real cause: for a web server that does not answer, fsspec reports that the file does not exist."""
    cause = error.__cause__
    if not isinstance(error, FileNotFoundError) or not isinstance(cause, Exception):
        return error
    status = _find_status(cause)
    is_missing = status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE) or isinstance(cause, FileNotFoundError)
    is_of_network = status is not None or isinstance(cause, OSError) or type(cause).__module__.startswith("aiohttp")
    return cause if is_of_network and not is_missing else error


def _make_refusal(url: str, error: Exception) -> StoreRefusedError | None:
    """Return the error for an answer that a retry would not change; None if a retry may help."""
    # Some libraries turn answers into an OSError: the answer itself is its cause.
    status = next((code for cause in _list_causes(error) if (code := _find_status(cause)) is not None), None)
    if _has_name(error, _NO_CREDENTIALS) or status == HTTPStatus.UNAUTHORIZED:
        return StoreRefusedError(
            f"{_describe(url)}: there are no credentials for this store: {_take_first_line(error)}",
            help=_find_hint(url, _CREDENTIALS),
        )
    if isinstance(error, PermissionError) or status == HTTPStatus.FORBIDDEN:
        return StoreRefusedError(
            f"{_describe(url)}: access is denied: {_take_first_line(error)}", help=_find_hint(url, {}, _CHECK_RIGHTS)
        )
    if _EXPIRED in str(error):
        return StoreRefusedError(
            f"{_describe(url)}: the credentials have expired: {_take_first_line(error)}",
            help="get new ones, as with `aws sso login`; the same command resumes, finished work is kept",
        )
    is_final_status = status is not None and 400 <= status < 500 and status not in _BUSY
    is_wrong_use = isinstance(error, ValueError | TypeError | NotImplementedError) and not _has_name(
        error, _HALF_ANSWERS
    )
    if is_final_status or is_wrong_use:
        return StoreRefusedError(
            f"{_describe(url)}: the store refuses: {_take_first_line(error)}", help="check the address"
        )
    return None


def _describe(url: str) -> str:
    """Return the URL for a message, with the profile that was used to reach it."""
    used = describe_credentials(find_protocol(url) or "", find_options(url))
    return f"{redact(url)} ({used})" if used else redact(url)


def _find_hint(url: str, hints: Mapping[str, str], otherwise: str = "check the credentials for this store") -> str:
    protocol = url.partition("://")[0]
    return hints.get(_ALIASES.get(protocol, protocol), otherwise)


def _is_unreached(error: BaseException) -> bool:
    """Whether no connection was made at all."""
    causes = _list_causes(error)
    if type(error).__module__.startswith("obstore"):
        return _UNREACHED_TEXT in str(error)
    return any(isinstance(cause, socket.gaierror | ConnectionRefusedError) for cause in causes) or any(
        _has_name(cause, _UNREACHED) for cause in causes
    )


def _has_name(error: BaseException, names: tuple[str, ...]) -> bool:
    return any(kind.__name__ in names for kind in type(error).__mro__)


def _list_causes(error: BaseException) -> list[BaseException]:
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cause)
    return causes


def _find_status(error: BaseException) -> int | None:
    """Return the HTTP status in an error of any library, or None."""
    if type(error).__module__.startswith("obstore"):
        match = _STATUS.search(str(error))
        return int(match[1]) if match else None
    if _has_name(error, _BROKEN_ANSWERS):
        return None
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        response = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    status = response if isinstance(response, int) else getattr(response, "status_code", None)
    for name in ("", "status", "code"):  # one by one: in aiohttp, which has a status, to read the code is a warning
        candidate = getattr(error, name, None) if name else status
        if isinstance(candidate, int) and 100 <= candidate < 600:
            return candidate
    return None


def _take_first_line(error: BaseException) -> str:
    """Return the first line of a message, redacted; in further lines libraries repeat the request and add links."""
    message = str(error)
    answer = _ANSWER.search(message)
    # obstore puts the request and its duration before what went wrong.
    first = f"{answer[1]}: {answer[2]}" if answer else message.split("\n", maxsplit=1)[0].rpartition("s - ")[2]
    text = redact(" ".join(first.split())) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]}…"


class StoreUse(NamedTuple):
    """The use that tasks made of stores: reads, and the time that they waited."""

    wait_ms: int
    """How long they waited for bytes, or for room to send more."""
    reads: int
    read_bytes: int
    task_ms: int
    """How long the tasks took that used a store."""
    intermediate_reads: int
    """How many of the reads were of intermediate data."""
    intermediate_bytes: int

    @property
    def mean_read_bytes(self) -> int:
        """The mean size of a read."""
        return self.read_bytes // max(self.reads, 1)

    @property
    def mean_intermediate_bytes(self) -> int:
        """The mean size of a read of intermediate data."""
        return self.intermediate_bytes // max(self.intermediate_reads, 1)

    @property
    def wait_share(self) -> float:
        """The share of their time that tasks waited."""
        return self.wait_ms / max(self.task_ms, 1)


class WaitClock:
    """Counts of this process, from its start."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._num_reads = self._num_bytes = 0
        self._num_intermediate_reads = self._num_intermediate_bytes = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time until the end of the block as waiting."""
        started = perf_counter()
        try:
            yield
        finally:
            self.add_wait(perf_counter() - started)

    def add_wait(self, seconds: float) -> None:
        """Count time that was spent waiting."""
        self._seconds += seconds

    def count_read(self, key: str, num_bytes: int) -> None:
        """Count one read of this many bytes of an object."""
        self._num_reads += 1
        self._num_bytes += num_bytes
        if f"{INTERMEDIATE_DATA}/" in key:
            self._num_intermediate_reads += 1
            self._num_intermediate_bytes += num_bytes

    def show(self, task_seconds: float) -> StoreUse:
        """Give what was counted, with a time that tasks took."""
        return StoreUse(
            round(1000 * self._seconds),
            self._num_reads,
            self._num_bytes,
            round(1000 * task_seconds),
            self._num_intermediate_reads,
            self._num_intermediate_bytes,
        )


wait_clock = WaitClock()
