import pytest

from gristmill.core.errors import UsageError
from gristmill.storage.locations import parse_location
from gristmill.storage.paths import find_files
from gristmill.storage.stores import credentials
from gristmill.storage.stores.credentials import (
    StorageOptions,
    check_endpoint,
    choose_options,
    distrust_url,
    find_options,
    name_bucket,
    parse_options,
)
from gristmill.storage.stores.fsspec_store import FsspecStore
from gristmill.storage.urls import redact, refuse_secrets


@pytest.mark.parametrize("key", ["secret", "aws_secret_access_key", "key", "token", "password", "sas_token"])
def test_a_literal_secret_is_refused_and_not_repeated(key):
    with pytest.raises(UsageError, match="secret") as caught:
        parse_options({key: "VERY-SECRET"})
    assert "VERY-SECRET" not in str(caught.value)


def test_an_unknown_key_names_the_nearest():
    with pytest.raises(UsageError) as caught:
        parse_options({"endpont": "https://x"})
    assert "endpoint" in str(caught.value.help)
    with pytest.raises(UsageError, match="anonymous"):
        parse_options({"anonymous": "maybe"})


@pytest.mark.parametrize(
    "endpoint", ["https://minio.example", "http://127.0.0.1:9000", "http://localhost", "http://[::1]:1"]
)
def test_encrypted_or_local_endpoints(endpoint):
    check_endpoint(parse_options({"endpoint": endpoint}))


@pytest.mark.parametrize(
    "endpoint", ["http://minio.example", "http://10.0.0.7:9000", "ftp://x", "minio", "https://a:b@x"]
)
def test_other_endpoints(endpoint):
    with pytest.raises(UsageError, match="endpoint") as caught:
        check_endpoint(parse_options({"endpoint": endpoint}))
    assert "a:b" not in str(caught.value)


def test_an_endpoint_that_the_user_allows():
    check_endpoint(parse_options({"endpoint": "http://minio.example:9000"}), ["minio.example"])


def test_options_belong_to_buckets():
    choose_options("s3://mine/x/y", StorageOptions(profile="work"))
    assert find_options("s3://mine/z").profile == "work"
    assert find_options("s3://yours/x/y") == StorageOptions()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://KEY:SECRET@bucket/x", "s3://***@bucket/x"),
        (
            "https://b.s3.amazonaws.com/x?X-Amz-Signature=SECRET&a=1",
            "https://b.s3.amazonaws.com/x?X-Amz-Signature=***&a=1",
        ),
        ("https://host/x?sig=SECRET", "https://host/x?sig=***"),
        ("s3://KEY:SEC/RET/SECRET@bucket/x", "s3://***@bucket/x"),
        ("https://host:443/x?X-Goog-Signature=SECRET", "https://host:443/x?X-Goog-Signature=***"),
        ("https://host/x?OSSAccessKeyId=SECRET&a=1", "https://host/x?OSSAccessKeyId=***&a=1"),
        ("https://host/x?a=1&amp;api_key=SECRET", "https://host/x?a=1&amp;api_key=***"),
        ("https://host/x?key=SECRET#token=SECRET", "https://host/x?key=***#token=***"),
    ],
)
def test_secrets_in_urls(url, shown):
    assert redact(f"cannot read {url}, sorry") == f"cannot read {shown}, sorry"
    with pytest.raises(UsageError) as caught:
        refuse_secrets(url)
    assert "SECRET" not in str(caught.value)
    for harmless in (
        "https://host/x?tokenizer=a&tokens=1&author=b",
        "s3://bucket/x@y",
        "https://host:8080/x@y",
        "http://[::1]:80/x@y",
        "hf://datasets/o/n@main/x:y",
    ):
        refuse_secrets(harmless)


@pytest.mark.parametrize("ask", [parse_location, find_files])
def test_a_secret_is_not_sent_as_the_name_of_a_bucket(ask):
    """On the command line, too: `gristmill inspect s3://KEY:SECRET@bucket/web`."""
    for url in ("s3://KEY:SECRET@bucket/web", "s3://KEY:SEC/RET/SECRET@bucket/web"):
        with pytest.raises(UsageError, match="may not hold a secret") as caught:
            ask(url)
        assert "SECRET" not in str(caught.value)


def test_what_only_a_manifest_names_is_read_without_keys(monkeypatch):
    import fsspec

    opened = []
    monkeypatch.setattr(credentials, "_options", {})
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda url, **settings: opened.append(settings) or (None, ""))
    for url in ("hf://datasets/owner/name@main/x", "https://host/x", "sftp://host/x"):
        distrust_url(url)
    name_bucket("hf://datasets/owner/other")
    FsspecStore("hf://datasets/owner/name/x")
    FsspecStore("hf://datasets/owner/other/x")
    FsspecStore("https://host/x")
    with pytest.raises(UsageError, match="--bucket sftp://host"):
        FsspecStore("sftp://host/x")
    name_bucket("sftp://host")
    FsspecStore("sftp://host/x")
    assert opened == [{"token": False}, {}, {}, {}]
