"""URLs of stores: their parts, and no secret in what is shown."""

import pytest

from gristmill.core.errors import UsageError
from gristmill.storage.urls import find_bucket, find_protocol, local_path, redact, refuse_secrets


@pytest.mark.parametrize(
    ("url", "protocol", "bucket"),
    [
        ("s3://corpus/web/x.jsonl", "s3", "s3://corpus"),
        ("https://host:8000/a/b", "https", "https://host:8000"),
        ("hf://datasets/owner/name@main/x", "hf", "hf://datasets/owner/name"),
    ],
)
def test_the_parts_of_a_url(url, protocol, bucket):
    assert find_protocol(url) == protocol
    assert find_bucket(url) == bucket
    assert local_path(url) == url


@pytest.mark.parametrize("path", ["/data/x", "data/x", "file:///data/x", "C-3://x", "a b://c"])
def test_a_local_path_has_no_protocol(path):
    assert find_protocol(path) is None
    assert local_path(path) == path.removeprefix("file://")


@pytest.mark.every_case
@pytest.mark.parametrize(
    "url",
    [
        "s3://key:SECRET@bucket/x",
        "s3://key:SEC/RET@bucket/x",
        "https://host/x?X-Amz-Signature=SECRET",
        "https://host/x?a=1&sig=SECRET",
        "https://host/x?access_token=SECRET#top",
        "https://host/x#api_key=SECRET",
    ],
)
def test_a_secret_is_neither_shown_nor_taken(url):
    shown = redact(f"cannot read {url}, twice")
    assert "SECRET" not in shown
    assert "RET" not in shown
    assert "***" in shown
    with pytest.raises(UsageError) as raised:
        refuse_secrets(url)
    assert "SECRET" not in str(raised.value)


@pytest.mark.parametrize("url", ["s3://bucket/x", "https://host:8000/a@b", "https://host/x?page=2", "/data/a@b"])
def test_what_holds_no_secret_stays(url):
    assert redact(url) == url
    refuse_secrets(url)
