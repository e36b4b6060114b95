"""Packed rows against their documents alone, on tiny models: those that keep documents apart, and those that do not."""

import json

import pytest
from click.testing import CliRunner
from gristmill_testing.streams import write_packed
from gristmill_testing.token_datasets import write_tokens

from gristmill.core.errors import UsageError
from gristmill.stream import Collate, Stream

transformers = pytest.importorskip("transformers")
import torch  # noqa: E402

from gristmill.stream.torch.model_borders import check_borders  # noqa: E402

SIZE = {"vocab_size": 100, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
MODELS = {
    "llama": lambda: transformers.LlamaConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2, **SIZE
    ),
    "gpt2": lambda: transformers.GPT2Config(n_embd=8, n_layer=2, n_head=2, n_positions=64, **SIZE),
    "short": lambda: transformers.GPT2Config(n_embd=8, n_layer=1, n_head=1, n_positions=2, **SIZE),
    "bloom": lambda: transformers.BloomConfig(hidden_size=8, n_layer=2, n_head=2, **SIZE),
}
"""Bloom takes no position_ids, so it cannot know where a document begins."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_packed(tmp_path_factory.mktemp("rows") / "out", {"web": [9]}, vocab_size=100)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The folders of tiny models with random weights."""
    folders = {}
    for name, make_config in MODELS.items():
        torch.manual_seed(1)
        folders[name] = tmp_path_factory.mktemp("models") / name
        transformers.AutoModelForCausalLM.from_config(make_config()).save_pretrained(folders[name])
    return folders


def check(folder, model, **options):
    return check_borders(Stream(folder, collate=Collate(fields=("input_ids", "position_ids"))), str(model), **options)


@pytest.mark.parametrize(("name", "respects"), [("llama", True), ("gpt2", True), ("bloom", False)])
def test_models_that_know_borders_and_one_that_does_not(folder, models, name, respects):
    report = check(folder, models[name], num_rows=3)
    assert bool(report) == respects == report.takes_positions
    assert {entry.attention for entry in report.checks} == ({"eager", "sdpa"} if respects else {"eager"})
    for entry in report.checks:
        assert entry.rounding < 1e-5  # the first document of a row sees no other one
        if entry.call in ("1 row", "3 rows"):
            assert entry.respects_borders == respects == (entry.difference < 1e-5)
        else:
            assert not entry.respects_borders  # with a cache, models of transformers do not look for borders


def test_logits_that_are_not_numbers_prove_nothing(folder, models, tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(models["llama"])
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    model.save_pretrained(tmp_path / "broken")
    assert not check(folder, tmp_path / "broken", attentions=("eager",), num_rows=1)


def test_what_cannot_be_tried_is_refused(folder, models, tmp_path):
    with pytest.raises(UsageError, match="not a model"):
        check(folder, tmp_path)
    other = write_packed(tmp_path / "other", {"web": [9]})
    with pytest.raises(UsageError, match="vocabulary of 100"):
        check(other, models["llama"])
    with pytest.raises(UsageError, match="any attention implementation: sdpa"):
        check(folder, models["bloom"], attentions=("sdpa",))
    ragged = write_tokens(tmp_path / "ragged", {("train", "web"): [[[1, 2, 3]]]})
    with pytest.raises(UsageError, match="no borders"):
        check(ragged, models["llama"])
    with pytest.raises(UsageError, match="failed on these rows"):
        check(folder, models["short"])
    single = write_tokens(tmp_path / "single", {("train", "web"): [[[[1, 2, 3]]]]}, row_length=4)
    with pytest.raises(UsageError, match="none of the first 1 rows"):
        check_borders(
            Stream(single, rows=1, collate=Collate(fields=("input_ids", "position_ids"))), str(models["llama"])
        )


@pytest.mark.full
def test_the_command(folder, models):
    from gristmill.cli.training.stream import stream_command

    def prove(*arguments):
        return CliRunner().invoke(stream_command, ["prove", str(folder), "--model", *map(str, arguments)])

    done = prove(models["llama"])
    assert (done.exit_code, "proved: LlamaForCausalLM gives" in done.output) == (0, True), done.output
    assert "use_cache=False" in done.output
    done = prove(models["bloom"])
    assert (done.exit_code, "does not respect the borders" in done.output) == (1, True), done.output
    done = prove(models["bloom"], "--json")
    assert (done.exit_code, json.loads(done.output)["ok"]) == (1, False)


def test_a_model_that_cannot_show_a_leak_proves_nothing(folder, models, tmp_path):
    """With projections of zero no token sees another one, so documents alone and in a row are equal."""
    model = transformers.AutoModelForCausalLM.from_pretrained(models["llama"])
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
    model.save_pretrained(tmp_path / "zero")
    report = check(folder, tmp_path / "zero", attentions=("eager",), num_rows=2)
    assert all(entry.respects_borders for entry in report.checks)
    assert not report.can_show_leaks
    assert not report
    from gristmill.cli.training.stream import stream_command

    printed = CliRunner().invoke(stream_command, ["prove", str(folder), "--model", str(tmp_path / "zero")])
    assert printed.exit_code == 1
    assert "proved: Llama" not in printed.output
    assert check(folder, models["llama"], attentions=("eager",), num_rows=2).can_show_leaks
