"""Targets on the Hugging Face Hub. Exports to it are in `pipeline/jobs`."""

import pytest

from gristmill.core.errors import UsageError
from gristmill.storage.hub import HubRepository, parse_hub_target


def test_a_branch_is_optional():
    assert parse_hub_target("hf://datasets/ada/corpus") == HubRepository("ada/corpus", "main")
    assert parse_hub_target("hf://datasets/ada/corpus@v2") == HubRepository("ada/corpus", "v2")


@pytest.mark.parametrize(
    "url", ["hf://ada/corpus", "hf://datasets/ada", "hf://datasets/ada/corpus/train", "s3://datasets/ada/corpus"]
)
def test_what_is_no_dataset_repository_is_refused(url):
    with pytest.raises(UsageError, match="hf://datasets/OWNER/NAME"):
        parse_hub_target(url)
