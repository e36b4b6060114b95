"""URLs: their parts, what a recipe may not contain, and how they are shown.

A URL may hold secrets: `s3://key:secret@bucket/…`, or the signature of a presigned link. Recipes end up in manifests,
so such URLs are refused there, and everything that is logged or raised is redacted.
"""

from __future__ import annotations

import re

from gristmill.core.errors import UsageError

OBJECT_STORES = {"s3": "S3Store", "s3a": "S3Store", "gs": "GCSStore", "gcs": "GCSStore", "az": "AzureStore"}
"""Protocols of object stores, and obstore's classes for them."""
HUB = "hf://"
"""The beginning of what is on the Hugging Face Hub."""
_HOST = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?//(?:[^/?#@]*@)?(\[[^\]]*\]|[^/?#:]*)|([^/?#:@\s]+\.[^/?#:@\s]+)")
_LOCAL = frozenset({"file", "local"})
_SECRETS = re.compile(
    # Keys of S3 may hold slashes. What follows a colon may be a port instead.
    r"(?P<user>://)(?:[^/\s@?#]+|[^/\s@?#:\[]+:(?!\d{1,5}/)[^\s@?#]+)@"
    # Every provider has its own names: X-Amz-Credential, OSSAccessKeyId, GoogleAccessId, client_secret, apikey.
    r"|(?P<key>[?&;#](?:amp;)?(?:[\w-]*(?:signature|credential|secret|token|password|access-?(?:key-?)?id|api[_-]?key)"
    r"|sig|key|auth|hmac|hdnts|hdnea)=)[^&\s\"'<>,#]+",
    re.IGNORECASE,
)


def find_protocol(path: str) -> str | None:
    """Return the protocol of a URL; None for a local path, `file://` included.

    >>> find_protocol("s3://bucket/key"), find_protocol("file:///data/x"), find_protocol("data/x")
    ('s3', None, None)
    """
    protocol, separator, _ = path.partition("://")
    return protocol if separator and protocol.isalnum() and protocol not in _LOCAL else None


def local_path(path: str) -> str:
    """Return a local path without `file://`."""
    protocol, separator, rest = path.partition("://")
    return rest if separator and protocol in _LOCAL else path


def find_bucket(url: str) -> str:
    """Return the beginning of a URL up to its bucket or host; on the Hub, up to the repository.

    >>> find_bucket("s3://corpus/web/x.jsonl"), find_bucket("hf://datasets/owner/name@main/x.jsonl")
    ('s3://corpus', 'hf://datasets/owner/name')
    """
    protocol, _, rest = url.partition("://")
    if f"{protocol}://" == HUB:
        return HUB + "/".join(rest.partition("@")[0].split("/")[:3])
    return f"{protocol}://{rest.partition('/')[0]}"


def find_host(address: str) -> str:
    """Return the host of an address, in lower case and ASCII; empty if it has none.

    >>> find_host("https://me@WWW.Example.com:443/a?b"), find_host("bücher.de/x"), find_host("/a/b")
    ('www.example.com', 'xn--bcher-kva.de', '')
    """
    match = _HOST.match(address.strip())
    return normalize_host(match[1] or match[2] or "") if match else ""


def normalize_host(host: str) -> str:
    """Return a host or domain in lower case and ASCII, without the dots around it."""
    host = host.strip().strip(".").lower()
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode()
    except UnicodeError:
        return host


def redact(text: str) -> str:
    """Replace the secrets in URLs.

    >>> redact("s3://key:secret@bucket/x?X-Amz-Signature=abc")
    's3://***@bucket/x?X-Amz-Signature=***'
    """
    return _SECRETS.sub(lambda match: f"{match['user']}***@" if match["user"] else f"{match['key']}***", text)


def refuse_secrets(url: str) -> None:
    """Raise `UsageError` for a URL that holds a secret."""
    if find_protocol(url) is not None and redact(url) != url:
        raise UsageError(
            f"{redact(url)}: a URL may not hold a secret, because manifests and logs name files",
            help="remove it, and name a profile in storage_options, or set the usual environment variables",
        )
