"""Which addresses are blocked: domains with their subdomains, whole words, lists from files."""

import pytest

from gristmill.core.errors import UsageError
from gristmill.core.records import documents, texts
from gristmill.steps import Url
from gristmill.storage.urls import find_host


def kept(addresses, **keys):
    batch = documents([str(number) for number in range(len(addresses))], url=addresses)
    return [addresses[int(text)] for text in texts(Url(**keys).apply(batch, seed=0).batch)]


@pytest.mark.parametrize(
    ("address", "is_blocked"),
    [
        ("https://example.com/a", True),
        ("http://www.EXAMPLE.com:8080", True),
        ("//deep.sub.example.com?x", True),
        ("example.com", True),
        ("ftp://user:pass@example.com./x", True),
        ("https://notexample.com/", False),
        ("https://example.com.evil.org/", False),
        ("https://other.org/example.com", False),
        ("https://b\u00fccher.de/", True),
        ("https://xn--bcher-kva.de/", True),
        ("not an address", False),
        ("", False),
        (None, False),
    ],
)
def test_domains(address, is_blocked):
    assert (kept([address], domains=["example.com", "Bücher.de"]) == []) == is_blocked


@pytest.mark.parametrize(
    ("address", "is_blocked"),
    [
        ("https://a.org/Casino-bonus", True),
        ("https://casino.a.org/", True),
        ("https://a.org/?q=casino", True),
        ("https://a.org/casinos", False),
        ("https://a.org/my_casino_x", True),
    ],
)
def test_words(address, is_blocked):
    assert (kept([address], words=["CASINO"]) == []) == is_blocked


def test_lists_from_files(tmp_path):
    (tmp_path / "domains.txt").write_text("bad.org\n\nworse.net\n")
    (tmp_path / "words.txt").write_text("spam\n")
    step = Url(domain_lists=["domains.txt"], word_lists=["words.txt"]).resolve(str(tmp_path))
    batch = documents(["a", "b", "c"], url=["http://x.bad.org", "http://ok.org/spam", "http://ok.org"])
    applied = step.apply(batch, seed=0)
    assert (texts(applied.batch), applied.dropped) == (["c"], {"blocked_domain": 1, "blocked_word": 1})
    with pytest.raises(UsageError, match=r"none\.txt"):
        Url(domain_lists=["none.txt"]).resolve(str(tmp_path))


def test_require():
    assert kept([None, "http://a.org"], require=True) == ["http://a.org"]


@pytest.mark.parametrize("keys", [{}, {"domains": ["."]}, {"words": ["two words"]}])
def test_wrong_keys_are_refused(keys):
    with pytest.raises(UsageError):
        Url(**keys)


def test_a_missing_column_is_named():
    with pytest.raises(UsageError, match='no column "link"'):
        Url(column="link", require=True).output_schema(documents(["a"]).schema)


def test_hosts_of_odd_addresses():
    assert find_host("http://[::1]:80/") == "[::1]"
    assert find_host("https:///path") == ""
    assert find_host("mailto:a@b.org") == ""
