"""How a bucket is reached: credentials, region and endpoint, from the places that the tools of each provider use.

Credentials are loaded when a store is first used, renewed by the provider's own library, and kept in memory: nothing
here is pickled, logged or written. Options (endpoint, region, profile, or no credentials; never a secret) belong to
buckets. A recipe names them once, for all its URLs; workers are told with their first task. Without options the usual
places decide: environment variables, `~/.aws/config`, the credentials of the machine.
"""

from __future__ import annotations

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from gristmill.core.checks import check_choice
from gristmill.core.errors import UsageError, install_command
from gristmill.storage.urls import OBJECT_STORES, find_bucket, find_protocol, redact

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

_SECRET_WORDS = ("key", "secret", "token", "password", "credential", "sas")
_KEY_VARIABLE = "AWS_ACCESS_KEY_ID"
_PROFILE_VARIABLES = ("AWS_DEFAULT_PROFILE", "AWS_PROFILE")
"""As botocore looks for them, the first one first."""
_ENDPOINT_VARIABLES = {
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "gcs": ("GOOGLE_BASE_URL",),
}
_GOOGLE_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_S3_CONTENT_TYPE = "binary/octet-stream"
"""What S3 assumes where no type is named, for each part too: SeaweedFS compresses parts without one at 80 MB/s."""
_RENEWAL = timedelta(minutes=5)
"""How long temporary credentials are used before botocore is asked again, which renews them in time."""


class NoCredentialsError(Exception):
    """There are no credentials in any of the usual places."""


def choose_settings(protocol: str, options: StorageOptions) -> tuple[dict[str, Any], dict[str, Any]]:
    """Choose the settings of a bucket and of its connections, for obstore."""
    if protocol in ("s3", "s3a"):
        return _choose_s3_settings(options)
    settings: dict[str, Any] = {}
    if options.profile or options.region:
        raise UsageError(f"storage_options: profile and region are for s3://, not for {protocol}://")
    if options.endpoint:
        settings["base_url" if protocol in ("gs", "gcs") else "endpoint"] = options.endpoint
    if options.anonymous:
        settings["skip_signature"] = True
    elif protocol in ("gs", "gcs"):
        settings["credential_provider"] = _make_google_provider()
    # obstore takes an endpoint from the environment, such as that of an emulator.
    endpoints = (os.environ.get(name) for name in _ENDPOINT_VARIABLES.get(protocol, ()))  # noqa: TID251  (as obstore)
    endpoint = options.endpoint or next(filter(None, endpoints), None)
    return settings, {"allow_http": True} if _is_plain(endpoint) else {}


def describe_credentials(protocol: str, options: StorageOptions) -> str:
    """Say which credentials a bucket is reached with, for messages; empty if that is up to the provider's library."""
    if options.anonymous:
        return "without credentials"
    if options.profile:
        return f"profile {options.profile}"
    if protocol not in ("s3", "s3a"):
        return ""
    if _KEY_VARIABLE in os.environ:  # noqa: TID251  (botocore prefers it to the profile in the environment)
        return f"the keys in {_KEY_VARIABLE}"
    profile = next(filter(None, (os.environ.get(name) for name in _PROFILE_VARIABLES)), None)  # noqa: TID251
    return f"profile {profile}" if profile else ""


def look_up_options(bucket: str, options: StorageOptions) -> StorageOptions:
    """Look up endpoint and region for workers, if the keys are in the environment; else they look for all of it."""
    if find_protocol(bucket) not in ("s3", "s3a"):
        return options
    if options.anonymous or options.profile or isinstance(options, EnvironmentOptions):
        return options
    try:
        session = _open_session(options)
        credentials = session.get_credentials()
    except Exception:  # the first use of the store raises it again, and explains it
        return options
    if credentials is None or credentials.method != "env" or _is_virtual(session):
        return options
    return EnvironmentOptions(endpoint=_find_endpoint(session, options), region=_find_region(session, options))


def open_s3_client(options: StorageOptions) -> Any:
    """Open a client of botocore, for the one request that obstore does not have: listing unfinished uploads."""
    session = _open_session(options)
    from botocore import UNSIGNED  # noqa: PLC0415
    from botocore.config import Config  # noqa: PLC0415

    config = Config(signature_version=UNSIGNED) if options.anonymous else None
    return session.create_client(
        "s3", region_name=_find_region(session, options), endpoint_url=_find_endpoint(session, options), config=config
    )


def _choose_s3_settings(options: StorageOptions) -> tuple[dict[str, Any], dict[str, Any]]:
    settings: dict[str, Any] = {"checksum_algorithm": "SHA256", "conditional_put": "etag"}
    # On another machine the environment may be another one.
    if isinstance(options, EnvironmentOptions) and _KEY_VARIABLE in os.environ:  # noqa: TID251  (obstore reads it)
        settings |= {"region": options.region} | ({"endpoint": options.endpoint} if options.endpoint else {})
        return settings, _choose_s3_connection(options.endpoint)
    session = _open_session(options)
    endpoint = _find_endpoint(session, options)
    settings["region"] = _find_region(session, options)
    if endpoint:
        settings["endpoint"] = endpoint
    if _is_virtual(session):
        settings["virtual_hosted_style_request"] = True
    if options.anonymous:
        settings["skip_signature"] = True
    else:
        settings["credential_provider"] = _make_provider(session)
    return settings, _choose_s3_connection(endpoint)


def _choose_s3_connection(endpoint: str | None) -> dict[str, Any]:
    return {"default_headers": {"content-type": _S3_CONTENT_TYPE}, "allow_http": _is_plain(endpoint)}


def _is_virtual(session: Any) -> bool:
    """Whether the bucket is a part of the host's name."""
    return (session.get_scoped_config().get("s3") or {}).get("addressing_style") == "virtual"


def _make_provider(session: Any) -> Callable[[], dict[str, Any]]:
    credentials = session.get_credentials()
    if credentials is None:
        raise NoCredentialsError("nothing was found in the environment, in ~/.aws or on this machine")

    def provide() -> dict[str, Any]:
        frozen = credentials.get_frozen_credentials()
        is_renewed = hasattr(credentials, "refresh_needed")
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + _RENEWAL if is_renewed else None,
        }

    provide()  # an error is raised here, where it can be explained
    return provide


def _make_google_provider() -> Any:
    try:
        import google.auth  # noqa: PLC0415  (only for Google)
        from obstore.auth.google import GoogleCredentialProvider  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(f"gs:// needs a package: {error}", help=install_command("gcs")) from error
    # The key of a service account gets no token without a scope.
    credentials, _ = google.auth.default(scopes=[_GOOGLE_SCOPE])
    return GoogleCredentialProvider(credentials)


def _open_session(options: StorageOptions) -> Any:
    try:
        import botocore.session  # noqa: PLC0415  (only for S3)
    except ImportError as error:
        raise UsageError(f"s3:// needs a package: {error}", help=install_command("s3")) from error
    session = botocore.session.Session(profile=options.profile)
    session.get_scoped_config()  # raises for a profile that does not exist
    return session


def _find_region(session: Any, options: StorageOptions) -> str:
    return options.region or session.get_config_variable("region") or "us-east-1"


def _find_endpoint(session: Any, options: StorageOptions) -> str | None:
    if options.endpoint:
        return options.endpoint
    from botocore.configprovider import ConfiguredEndpointProvider  # noqa: PLC0415

    provider = ConfiguredEndpointProvider(
        full_config=session.full_config, scoped_config=session.get_scoped_config(), client_name="s3"
    )
    endpoint: str | None = provider.provide()
    return endpoint


def _is_plain(endpoint: str | None) -> bool:
    return endpoint is not None and endpoint.startswith("http://")


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
    """Whether the user has named the bucket of a URL. What is in no bucket needs no credentials, and no name."""
    if find_protocol(url) not in OBJECT_STORES:
        return True
    options = _options.get(find_bucket(url))
    return options is not None and options is not _DISTRUSTED


def distrust_url(url: str) -> None:
    """Use no credentials for a URL that a third-party file names, unless the user has named its bucket, too."""
    if find_protocol(url) is not None:
        _options.setdefault(find_bucket(url), _DISTRUSTED)


def is_distrusted(url: str) -> bool:
    """Whether only a third-party file has named a URL."""
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
