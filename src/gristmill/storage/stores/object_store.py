"""Object stores (S3, Google, Azure) through obstore: fast, with exact errors, and with conditional writes.

obstore makes each request once, because `ask_store` retries; only the parts of an upload, and Azure's listings, are
retried by obstore itself. To S3 every part goes with its SHA-256, which the store compares with what it has received.
Listings come a thousand names at a time and are never held as a whole.
"""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property, partial
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, cast

from gristmill.core.errors import StoreRefusedError, UsageError, install_command
from gristmill.storage.stores.base import PIECE_BYTES, ObjectChangedError, ObjectExistsError, StoredObject
from gristmill.storage.stores.credentials import choose_settings, open_s3_client
from gristmill.storage.stores.ranged_stream import RangedStream
from gristmill.storage.stores.retries import (
    TRIES,
    ask_store,
    make_changed_error,
    make_missing_bucket_error,
    make_settings_error,
)
from gristmill.storage.urls import OBJECT_STORES, find_bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from typing_extensions import Buffer

    from gristmill.storage.stores.credentials import StorageOptions

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure"}
_GOOGLE = ("gs", "gcs")
CONCURRENT_PARTS = 8
"""The parts of an upload that are under way at once: 106 MB of rows, which come at once, wait for two rounds."""
_CONFLICT = "ConditionalRequestConflict"
"""S3's answer to a conditional write while another one is under way. Nothing is known of who wins."""
_NO_BUCKET = ("<Code>NoSuchBucket</Code>", "<Code>ContainerNotFound</Code>")
_PAGE_OBJECTS = 1000
_AFTER_FOLDER = "/\U0010ffff"
"""Follows all names in a folder, in the order in which stores list."""
_CONNECTION, _SILENCE, _LONGEST_REQUEST = timedelta(seconds=10), timedelta(seconds=60), timedelta(minutes=10)
"""How long a connection may take, an answer without a byte of it coming, and a request as a whole. Eight parts of two
workers, 128 MiB, take a minute where 18 Mbit/s go out, so a minute for a request would be too short for an upload."""
_BACKOFF = {"init_backoff": timedelta(seconds=0.5), "max_backoff": timedelta(seconds=4), "base": 2}


class ObjectStore:
    """One bucket. Keys are as the store has them, without a slash in front."""

    lists_flat: ClassVar[bool] = True

    def __init__(self, url: str, options: StorageOptions) -> None:
        self._root = find_bucket(url) + "/"
        self._options = options
        self._protocol, _, bucket = self._root.rstrip("/").partition("://")
        self._bucket = bucket
        self._has_answered = False

    def url(self, key: str) -> str:
        return self._root + key

    def head(self, key: str) -> StoredObject:
        return _to_object(self._ask(key, lambda: self._library.head(self._handle, key)))

    def read(self, key: str, start: int = 0, stop: int | None = None, *, version: str = "") -> bytes:
        if stop is not None and stop <= start:
            return b""
        options: dict[str, Any] = {"if_match": f'"{version}"'} if version else {}
        if stop is not None:
            options["range"] = (start, stop)
        elif start:
            options["range"] = {"offset": start}
        try:
            return self._get(key, options)[0]
        except ObjectChangedError as error:
            raise make_changed_error(self.url(key)) from error

    def open(self, key: str, start: int = 0, stop: int | None = None) -> BinaryIO:
        ranges = _ObjectRanges(self, key)
        return cast("BinaryIO", RangedStream(ranges.read, ranges.find_size, start, stop, key=key))

    def read_first(self, key: str, start: int, stop: int) -> tuple[bytes, StoredObject]:
        """Read a range, with the size and version of the object; nothing, if the object ends before it."""
        try:
            return self._get(key, {"range": (start, stop)})
        except StoreRefusedError:  # stores refuse a range after the end
            pass
        stored = self.head(key)
        return self.read(key, start, min(stop, stored.num_bytes), version=stored.version), stored

    def _get(self, key: str, options: dict[str, Any]) -> tuple[bytes, StoredObject]:
        def get() -> tuple[memoryview, StoredObject]:
            result = self._library.get(self._handle, key, options=options)
            first, end = result.range
            data = memoryview(result.bytes())
            if len(data) != end - first:
                raise ConnectionError(f"the connection ended after {len(data)} of {end - first} bytes")
            return data, _to_object(result.meta)

        return cast("tuple[bytes, StoredObject]", self._ask(key, get))

    def put(self, key: str, data: Buffer, *, create: bool = False, replaces: str | None = None) -> str:
        mode: Any = "create" if create else "overwrite" if replaces is None else self._match_version(key, replaces)
        result = self._ask(
            key, lambda: self._library.put(self._handle, key, bytes(data), mode=mode, use_multipart=False)
        )
        return _clean_version(result)

    def put_stream(self, key: str, pieces: Iterator[bytes]) -> str:
        # No retry from here: the pieces come once. obstore retries each part, and aborts the upload if that fails.
        put = partial(
            self._library.put,
            self._retrying_handle,
            key,
            use_multipart=True,
            chunk_size=PIECE_BYTES,
            max_concurrency=CONCURRENT_PARTS,
        )
        return _clean_version(self._ask(key, lambda: put(pieces), tries=1))

    def copy(self, key: str, target: str) -> None:
        self._ask(key, lambda: self._library.copy(self._handle, key, target))

    def delete(self, keys: Sequence[str]) -> None:
        for first in range(0, len(keys), _PAGE_OBJECTS):
            page = list(keys[first : first + _PAGE_OBJECTS])
            try:
                self._ask(page[0], partial(self._library.delete, self._handle, page))
            except FileNotFoundError:  # Google's answer for what is gone already
                for key in page:
                    self._delete_one(key)

    def list_all(self, prefix: str) -> Iterator[StoredObject]:
        return self._list_after(prefix.rstrip("/"), "")

    def list_folder(self, prefix: str) -> Iterator[StoredObject | str]:
        folder = f"{prefix.rstrip('/')}/" if prefix else ""
        offset: str | None = ""
        last_folder = ""
        while offset is not None:
            entries, start, offset = self._list_after(folder.rstrip("/"), offset), len(folder), None
            for entry in entries:
                name, is_deeper, _ = entry.key[start:].partition("/")
                if not is_deeper:
                    yield entry
                elif name != last_folder:
                    yield name
                    last_folder = name
                    if self._lists_from_offset:
                        # The listing begins again after that folder: one request, no matter what is in it.
                        offset = f"{folder}{name}{_AFTER_FOLDER}"
                        break

    def abort_uploads(self, prefix: str, is_ours: Callable[[str], bool]) -> list[str]:
        if self._protocol not in ("s3", "s3a"):
            return []  # Google's and Azure's parts go by themselves after a week
        return cast("list[str]", self._ask(prefix, partial(self._abort_listed, prefix, is_ours)))

    def _abort_listed(self, prefix: str, is_ours: Callable[[str], bool]) -> list[str]:
        client = open_s3_client(self._options)
        aborted = []
        pages = client.get_paginator("list_multipart_uploads").paginate(Bucket=self._bucket, Prefix=prefix)
        for upload in (upload for page in pages for upload in page.get("Uploads", [])):
            if is_ours(upload["Key"]):
                client.abort_multipart_upload(Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"])
                aborted.append(str(upload["Key"]))
        return aborted

    def _match_version(self, key: str, version: str) -> dict[str, str]:
        """Return what identifies the object that is to be replaced, as the store needs it."""
        if self._protocol not in _GOOGLE:
            return {"e_tag": f'"{version}"'}
        try:
            entry = self._ask(key, lambda: self._library.head(self._handle, key))
        except FileNotFoundError:
            entry = None
        if entry is None or _clean_version(entry) != version:
            raise ObjectChangedError(f"{self.url(key)} was changed by another writer")
        return {"version": entry["version"]}  # Google compares the number of the generation, and no etag

    @property
    def _lists_from_offset(self) -> bool:
        """Whether a listing can begin after a name. Azure ignores where obstore asks it to begin."""
        return self._protocol != "az"

    def _list_after(self, prefix: str, offset: str) -> Iterator[StoredObject]:
        """Iterate over the objects whose keys follow `offset`; a listing that breaks off is resumed.

        Where a store cannot begin at an offset, obstore asks again for the page that broke off.
        """
        pages: Iterator[list[dict[str, Any]]] | None = None
        handle, tries = (self._handle, TRIES) if self._lists_from_offset else (self._retrying_handle, 1)

        def read_page() -> list[dict[str, Any]] | None:
            nonlocal pages
            if pages is None:
                pages = iter(handle.list(prefix or None, offset=offset or None, chunk_size=_PAGE_OBJECTS))
            try:
                return next(pages, None)
            except Exception:
                pages = None
                raise

        while page := self._ask(prefix, read_page, tries):
            for entry in page:
                offset = entry["path"]
                if entry["size"] or self._is_object(offset):
                    yield _to_object(entry)

    def _is_object(self, key: str) -> bool:
        """Whether it is an empty object, not the marker of a folder that some tools create: obstore hides the slash."""
        try:
            self.head(key)
        except FileNotFoundError:
            return False
        return True

    def _delete_one(self, key: str) -> None:
        try:
            self._ask(key, lambda: self._library.delete(self._handle, key))
        except FileNotFoundError:
            pass

    def _ask(self, key: str, request: Callable[[], Any], tries: int = TRIES) -> Any:
        errors = self._library.exceptions

        def make_request() -> Any:
            try:
                return request()
            except errors.AlreadyExistsError as error:
                if _CONFLICT in str(error):
                    raise  # it may exist or not: the store is asked again
                raise ObjectExistsError(f"{self.url(key)} exists already") from error
            except errors.PreconditionError as error:
                raise ObjectChangedError(f"{self.url(key)} was changed by another writer") from error
            except (errors.GenericError, FileNotFoundError) as error:
                if any(code in str(error) for code in _NO_BUCKET):
                    raise make_missing_bucket_error(self._root) from error
                if "Wanted range starting at" in str(error):  # an answer of Azure's, which has the end of the object
                    raise ValueError(f"{self.url(key)} ends before the range") from error
                raise

        answer = ask_store(self.url(key), make_request, tries, has_answered=self._has_answered)
        self._has_answered = True
        return answer

    @cached_property
    def _library(self) -> Any:
        try:
            import obstore  # noqa: PLC0415  (local files need none of it)
            import obstore.exceptions  # noqa: PLC0415
        except ImportError as error:
            raise UsageError(
                f"{self._root}: {self._protocol}:// needs a package: {error}",
                help=install_command(_EXTRAS[self._protocol]),
            ) from error
        return obstore

    @cached_property
    def _handle(self) -> Any:
        return self._open_handle(retries=0)

    @cached_property
    def _retrying_handle(self) -> Any:
        return self._open_handle(retries=TRIES)

    def _open_handle(self, retries: int) -> Any:
        import obstore.store  # noqa: PLC0415

        retry = {"max_retries": retries, "backoff": _BACKOFF, "retry_timeout": _LONGEST_REQUEST}
        client: dict[str, Any] = {"connect_timeout": _CONNECTION, "timeout": _LONGEST_REQUEST}
        if not retries:  # to send a part over a slow line may take longer, and nothing is read meanwhile
            client["read_timeout"] = _SILENCE
        settings, client_settings = ask_store(self._root, lambda: choose_settings(self._protocol, self._options))
        store_class = getattr(obstore.store, OBJECT_STORES[self._protocol])
        try:
            return store_class(self._bucket, retry_config=retry, client_options=client | client_settings, **settings)
        except self._library.exceptions.BaseError as error:  # before any request
            raise make_settings_error(self._root, error) from error


class _ObjectRanges:
    """The ranges of an object, all of the version that was seen first."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store, self._key = store, key
        self._stored: StoredObject | None = None
        self._lock = Lock()

    def find_size(self) -> int:
        return (self._stored or self._see(self._store.head(self._key))).num_bytes

    def read(self, start: int, stop: int) -> bytes:
        if self._stored is None:
            data, stored = self._store.read_first(self._key, start, stop)
            self._see(stored)
            return data
        return self._store.read(self._key, start, stop, version=self._stored.version)

    def _see(self, stored: StoredObject) -> StoredObject:
        """Keep the version that is seen first; several ranges may be read before any is known."""
        with self._lock:
            self._stored = self._stored or stored
        if self._stored != stored:
            raise make_changed_error(self._store.url(self._key))
        return stored


def _to_object(entry: Mapping[str, Any]) -> StoredObject:
    return StoredObject(entry["path"], entry["size"], _clean_version(entry))


def _clean_version(entry: Mapping[str, Any]) -> str:
    return (entry["e_tag"] or entry["version"] or "").strip('"')
