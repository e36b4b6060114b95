"""Object stores with settings that cannot be used: said at once."""

import sys

import pytest

from gristmill.core.errors import StoreRefusedError, UsageError
from gristmill.storage.locations import StorePath
from gristmill.storage.stores.open_store import forget_stores


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    pytest.importorskip("obstore")
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("a retry does not help"))
    forget_stores()
    yield monkeypatch
    forget_stores()


def test_a_missing_account(environment):
    with pytest.raises(StoreRefusedError, match="Account must be specified") as caught:
        StorePath("az://container/out").read_bytes()
    assert "AZURE_STORAGE_ACCOUNT_NAME" in str(caught.value)


def test_a_key_that_is_none(environment):
    environment.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    environment.setenv("AZURE_STORAGE_ACCOUNT_KEY", "not a key!")
    with pytest.raises(StoreRefusedError, match="Invalid Access Key") as caught:
        StorePath("az://container/out").read_bytes()
    assert "not a key!" not in str(caught.value)


def test_a_missing_package(environment):
    environment.setitem(sys.modules, "google.auth", None)
    with pytest.raises(UsageError, match=r"\.\[gcs\]"):
        StorePath("gs://bucket/out").read_bytes()
