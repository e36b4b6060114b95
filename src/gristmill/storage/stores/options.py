"""How a store is reached: endpoint, region, profile, or without credentials. Never a secret.

Options belong to buckets. A recipe names them once, for all its URLs; workers are told with their first task. Without
options the usual places decide: environment variables, `~/.aws/config`, the credentials of the machine.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from gristmill.core.errors import UsageError
from gristmill.core.names import check_choice
from gristmill.storage.urls import OBJECT_STORES, find_bucket, find_protocol, redact

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_SECRET_WORDS = ("key", "secret", "token", "password", "credential", "sas")


class StorageOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a bucket."""

    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    anonymous: bool = False


class EnvironmentOptions(StorageOptions, frozen=True, kw_only=True):
    """Options with everything looked up but the keys, which are in the environment, where obstore finds them itself.

    A worker that gets them need not import botocore, which takes 0.2 s.
    """


_DISTRUSTED = StorageOptions(anonymous=True)
_options: dict[str, StorageOptions] = {}
"""By bucket."""


def parse_options(data: Mapping[str, Any]) -> StorageOptions:
    """Check the `storage_options` of a recipe. `UsageError` for a secret or an unknown key."""
    known = StorageOptions.__struct_fields__
    for key in data:
        if key in known:
            continue
        if any(word in key.lower() for word in _SECRET_WORDS):
            raise UsageError(
                f"storage_options: {key} is a secret, which does not belong into a recipe",
                help="set it in the environment or in a profile, and name that: profile: NAME",
            )
        check_choice("a key of storage_options", key, known)
    try:
        return msgspec.convert(dict(data), StorageOptions)
    except msgspec.ValidationError as error:
        raise UsageError(f"storage_options: {error}") from error


def check_endpoint(options: StorageOptions, allowed: Collection[str] = ()) -> None:
    """Refuse an endpoint to which data and signed requests would go in the clear, unless its host is `allowed`."""
    if options.endpoint is None:
        return
    url = urlsplit(options.endpoint)
    host = url.hostname or ""
    if url.username or url.password or url.query:
        raise UsageError(f"storage_options: endpoint {redact(options.endpoint)} holds a secret", help="remove it")
    if url.scheme not in ("http", "https") or not host:
        raise UsageError(f"storage_options: endpoint {options.endpoint} is no address", help="write https://HOST")
    if url.scheme == "https" or _is_loopback(host) or host in allowed:
        return
    raise UsageError(
        f"storage_options: the endpoint {options.endpoint} is another machine, and the connection is not encrypted",
        help=f"use https, or add --allow-endpoint {host} if you trust the network",
    )


def choose_options(url: str, options: StorageOptions) -> None:
    """Choose the options for the bucket of a URL, in this process."""
    _options[find_bucket(url)] = options


def name_bucket(url: str) -> None:
    """Note that the user has named a bucket, on the command line or in a recipe: it may be read with credentials."""
    if find_protocol(url) is not None and _options.get(find_bucket(url)) in (None, _DISTRUSTED):
        _options[find_bucket(url)] = StorageOptions()


def is_named(url: str) -> bool:
    """Tell whether the user has named the bucket of a URL. What is in no bucket needs no credentials, and no name."""
    if find_protocol(url) not in OBJECT_STORES:
        return True
    options = _options.get(find_bucket(url))
    return options is not None and options is not _DISTRUSTED


def distrust_url(url: str) -> None:
    """Read a URL that a file of others names without credentials, unless the user has named its bucket, too."""
    if find_protocol(url) is not None:
        _options.setdefault(find_bucket(url), _DISTRUSTED)


def is_distrusted(url: str) -> bool:
    """Tell whether only a file of others has named a URL."""
    return _options.get(find_bucket(url)) is _DISTRUSTED


def find_options(url: str) -> StorageOptions:
    """Find the options of a URL's bucket."""
    return _options.get(find_bucket(url), StorageOptions())


def list_chosen_options() -> dict[str, StorageOptions]:
    """List the options of all buckets, to tell a worker of them."""
    return dict(_options)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
