"""A check of a tokenizer."""

import pytest
from gristmill_testing.small_tokenizers import SENTENCES

from gristmill.text.tokenizers.check_tokenizer import check_tokenizer
from gristmill.text.tokenizers.files import find_tokenizer
from gristmill.text.tokenizers.train import save_tokenizer, train_bpe


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("trained")
    save_tokenizer(train_bpe(iter(SENTENCES * 5), vocab_size=320), path)
    return path


def test_check(folder):
    report = check_tokenizer(find_tokenizer(str(folder)), list(SENTENCES))
    assert report.num_bytes == sum(len(text.encode()) for text in SENTENCES)
    assert report.bytes_per_token == round(report.num_bytes / report.num_tokens, 3)
    assert report.num_round_trips == report.num_adversarial
    assert (report.engine, set(report.engines)) == ("fastokens", {"fastokens", "tokenizers"})
    assert report.engines["fastokens"].megabytes_per_second >= 0  # rounded: 0 on a busy machine
