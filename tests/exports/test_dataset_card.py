"""The card of an export: what a reader of the Hub needs, in valid YAML and Markdown."""

import pytest
import yaml
from gristmill_testing.token_datasets import write_tokens

from gristmill.exports.dataset_card import make_card
from gristmill.shards.manifest_file import load_manifest


@pytest.fixture
def manifest(tmp_path):
    return load_manifest(write_tokens(tmp_path / "out", {("train", "web"): [[[1, 2]]], ("train", "books"): [[[3]]]}))


def make(manifest, licences):
    card = make_card("my corpus", manifest, {"train": 1234}, {"train": "data/train-*"}, licences)
    _, head, body = card.split("---\n", 2)
    return yaml.safe_load(head), body


def test_splits_are_found_by_their_files(manifest):
    head, body = make(manifest, {})
    [config] = head["configs"]
    assert config["data_files"] == [{"split": "train", "path": "data/train-*"}]
    assert "# my corpus" in body
    assert "| train | 1,234 |" in body
    assert manifest.dataset_hash in body


@pytest.mark.parametrize(
    ("licences", "license"),
    [
        ({}, None),
        ({"web": "mit", "books": "mit"}, "mit"),
        ({"web": "mit"}, "other"),
        ({"web": "mit", "books": "cc0-1.0"}, "other"),
    ],
)
def test_a_licence_is_named_only_if_it_is_that_of_all(manifest, licences, license):
    head, body = make(manifest, licences)
    assert head.get("license") == license
    for source in ("web", "books"):
        assert f"| {source} | {licences.get(source, 'not stated')} |" in body


def test_names_cannot_break_a_table(manifest):
    _, body = make(manifest, {"web": "a|b\nc", "books": "mit"})
    assert "| web | a\\|b c |" in body
