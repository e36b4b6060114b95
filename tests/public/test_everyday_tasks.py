"""What people bring, and what they expect: each task as a new user would write it, from documents and `--help` only."""

import json
import os
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from gristmill_testing.documents import readers_environment
from gristmill_testing.prepared_interpreter import PreparedInterpreter
from gristmill_testing.small_tokenizers import trained

import gristmill as gm

DOCUMENTS = [
    {"id": f"d{number}", "text": f"Sack number {number} holds {number * 7} grains of the best wheat of the year."}
    for number in range(100)
]
LLAMA = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end_of_text|>")
LLAMA_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
CALLING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}"
    "<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def interpreter():
    prepared = PreparedInterpreter(["gristmill.cli.main", "gristmill.cli.running.run", "pyarrow"])
    yield prepared
    prepared.close()


@pytest.fixture
def user(interpreter, tmp_path):
    """Someone with a folder, an editor and a terminal."""

    def save(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list):
            content = "".join(json.dumps(record) + "\n" for record in content)
        path.write_text(content)

    def gristmill(*words, fails=0, stderr=True):
        done = interpreter.run("-m", "gristmill", *words, folder=tmp_path, environment=readers_environment())
        assert done.returncode == fails, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr * stderr

    def run(recipe, *words):
        save("recipe.yaml", recipe)
        gristmill("run", "recipe.yaml", "--overwrite", *words)
        return gm.open_dataset(tmp_path / "out")

    return SimpleNamespace(folder=tmp_path, save=save, gristmill=gristmill, run=run)


@pytest.fixture
def chats(user):
    """The same, with a tokenizer for ChatML."""
    trained(user.folder / "tokenizer", specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>"))

    def rows(records, render="{template: chatml}"):
        user.save("chats.jsonl", records)
        return user.run(
            f"sources: {{chats: {{read: chats.jsonl}}}}\noutput: out\nsteps:\n  - render: {render}\n"
            "  - tokenize: {tokenizer: tokenizer}\n  - pack: {row_length: 512, min_utilisation: 0}\n"
        )

    return SimpleNamespace(**vars(user), rows=rows)


def trained_text(dataset):
    return "".join(text for row in range(len(dataset)) for text, is_trained in dataset.spans(row) if is_trained)


def test_another_name_for_the_text(user):
    user.save("data/a.jsonl", [{"payload": {"body": document["text"]}} for document in DOCUMENTS])
    dataset = user.run("sources: {web: {read: data/*.jsonl, text: payload.body}}\noutput: out\n")
    assert len(dataset) == 100


def test_a_text_of_several_fields(user):
    user.save("data/a.jsonl", [{"title": document["id"], "body": document["text"]} for document in DOCUMENTS])
    dataset = user.run('sources: {web: {read: data/*.jsonl, text: "{title}\\n\\n{body}"}}\noutput: out\n')
    assert dataset[0]["text"] == f"d0\n\n{DOCUMENTS[0]['text']}"


def test_parquet_of_the_hub_with_splits(user):
    import pyarrow as pa
    import pyarrow.parquet as pq

    (user.folder / "hub" / "data").mkdir(parents=True)
    for split, documents in (("train", DOCUMENTS[:90]), ("test", DOCUMENTS[90:])):
        pq.write_table(pa.Table.from_pylist(documents), user.folder / f"hub/data/{split}-00000-of-00001.parquet")
    dataset = user.run("sources: {hub: {read: hub}}\noutput: out\n")
    splits = dataset.manifest.splits
    assert {split: splits[split]["hub"][0].rows for split in splits} == {"train": 90, "test": 10}


def test_an_array_of_alpaca_as_rows_of_llama(user):
    trained(user.folder / "llama", specials=LLAMA, bos_token=LLAMA[0], eos_token="<|eot_id|>")
    user.save("llama/chat_template.jinja", LLAMA_TEMPLATE)
    alpaca = [{"instruction": f"Add {n} to 1.", "input": "", "output": f"It is {n + 1}."} for n in range(20)]
    user.save("alpaca.json", json.dumps(alpaca))
    dataset = user.run(
        "sources: {alpaca: {read: alpaca.json}}\noutput: out\nsteps:\n  - render\n"
        "  - tokenize: {tokenizer: llama}\n  - pack: {row_length: 128}\n"
    )
    answers = re.findall(r"It is (\d+)\.<\|eot_id\|>", trained_text(dataset))
    assert sorted(map(int, answers)) == list(range(1, 21))


def test_sharegpt_with_a_system_prompt(chats):
    turns = [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "The miller."}]
    dataset = chats.rows([{"system": "Be short.", "conversations": turns}] * 5)
    assert "<|im_start|>system\nBe short.<|im_end|>" in "".join(text for text, _ in dataset.spans(0))
    assert trained_text(dataset) == "The miller.<|im_end|>" * 5


def test_preference_pairs_are_refused_clearly(chats):
    chats.save("chats.jsonl", [{"prompt": "Which?", "chosen": "This.", "rejected": "That."}] * 5)
    chats.save("r.yaml", "sources: {pairs: {read: chats.jsonl}}\noutput: out\nsteps:\n  - render: {template: chatml}\n")
    assert "chosen" in chats.gristmill("run", "r.yaml", fails=2)


def test_own_token_ids_into_pack(user):
    """The first message says which key is missing."""
    trained(user.folder / "tokenizer")
    rows = [{"input_ids": [1, 2, 3, number % 50], "labels": [-100, 2, 3, number % 50]} for number in range(90)]
    user.save("rows.jsonl", rows)
    pack = "\nsteps: [pack: {row_length: 16}]\n"
    user.save("recipe.yaml", "output: out\nsources: {rows: {read: rows.jsonl}}" + pack)
    assert "`ids: input_ids`" in user.gristmill("plan", "recipe.yaml", fails=2)
    source = "{read: rows.jsonl, ids: input_ids, labels: labels, tokenizer: tokenizer}"
    dataset = user.run(f"output: out\nsources: {{rows: {source}}}" + pack)
    assert sum(int(row["loss_mask"].sum()) for row in dataset) == 3 * 90


def test_a_killed_run_continues(user):
    user.save("data/a.jsonl", DOCUMENTS * 20)
    user.save(
        "slow.py",
        "import os, signal, pathlib\n\n\ndef stop(record):\n"
        "    if record['id'] == 'd99' and pathlib.Path('kill').exists():\n"
        "        pathlib.Path('kill').unlink()\n        os.kill(os.getpid(), signal.SIGKILL)\n    return True\n",
    )
    recipe = "sources: {web: {read: data/*.jsonl}}\noutput: out\nsteps: [{filter: {call: slow.py:stop}}]\n"
    user.save("recipe.yaml", recipe)
    user.gristmill("plan", "recipe.yaml")
    user.save("kill", "")
    words = [sys.executable, "-m", "gristmill", "run", "recipe.yaml", "--backend", "serial"]
    environment = os.environ | readers_environment()
    killed = subprocess.run(words, cwd=user.folder, capture_output=True, env=environment, timeout=240)
    assert killed.returncode == -signal.SIGKILL
    user.gristmill("run", "recipe.yaml", "--backend", "serial")
    assert len(gm.open_dataset(user.folder / "out")) == 2000


def test_an_added_file_and_a_changed_threshold(user):
    user.save("data/a.jsonl", DOCUMENTS[:50])
    recipe = "sources: {{web: {{read: data/*.jsonl}}}}\noutput: out\nsteps: [{{length: {{min_chars: {}}}}}]\n"
    assert len(user.run(recipe.format(10))) == 50
    user.save("data/b.jsonl", DOCUMENTS[50:])
    assert "--update" in user.gristmill("run", "recipe.yaml", fails=1)
    user.gristmill("run", "recipe.yaml", "--update")
    assert len(gm.open_dataset(user.folder / "out")) == 100
    user.save("recipe.yaml", recipe.format(62))
    user.gristmill("run", "recipe.yaml", "--update")
    assert len(gm.open_dataset(user.folder / "out")) == sum(len(document["text"]) >= 62 for document in DOCUMENTS)


def test_a_validation_file(user):
    user.save("data/train.jsonl", DOCUMENTS[:90])
    user.save("data/val.jsonl", DOCUMENTS[90:])
    dataset = user.run("sources: {web: {read: {train: data/train*.jsonl, validation: data/val.jsonl}}}\noutput: out\n")
    assert {split: files["web"][0].rows for split, files in dataset.manifest.splits.items()} == {
        "train": 90,
        "validation": 10,
    }


def test_two_epochs_of_one_source(user):
    user.save("web.jsonl", DOCUMENTS)
    user.save("code.jsonl", [{"text": f"print({number})"} for number in range(30)])
    dataset = user.run(
        "sources: {web: {read: web.jsonl}, code: {read: code.jsonl}}\noutput: out\n"
        "steps: [{mix: {by: documents, epochs: {web: 1, code: 2}}}]\n"
    )
    assert len(dataset) == 160


def test_a_model_loaded_once_a_worker(user):
    user.save(
        "model.py",
        "from pathlib import Path\n\n\nclass Good:\n    def __init__(self, limit):\n        self.limit = limit\n"
        "        with Path('loads').open('a') as file:\n            file.write('x')\n\n"
        "    def __call__(self, record):\n        return int(record['id'][1:]) < self.limit\n",
    )
    user.save("data/a.jsonl", DOCUMENTS)
    dataset = user.run(
        "sources: {web: {read: data/*.jsonl}}\noutput: out\n"
        "steps: [{filter: {call: model.py:Good, args: {limit: 50}}}]\n",
        "--workers",
        "1",
    )
    assert len(dataset) == 50
    assert len((user.folder / "loads").read_text()) <= 3  # for the plan, and in each worker


def test_weights_of_messages_do_not_pass_in_silence(chats):
    messages = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I.", "weight": 0.5}]
    chats.save("chats.jsonl", [{"messages": messages}] * 5)
    chats.save("r.yaml", "sources: {c: {read: chats.jsonl}}\noutput: out\nsteps:\n  - render: {template: chatml}\n")
    assert "weights: true" in chats.gristmill("plan", "r.yaml", fails=2)


def test_many_small_files(user):
    (user.folder / "pages").mkdir()
    for number in range(10_000):
        (user.folder / "pages" / f"{number}.txt").write_text(f"page {number:04}")
    paths = sorted((user.folder / "pages").iterdir())
    assert sum(gm.parallel_map(lambda path: len(path.read_text()), paths, workers=2)) == 90_000


def test_a_dataset_in_memory(user):
    datasets = pytest.importorskip("datasets")
    recipe = gm.Recipe(
        sources={"mine": gm.steps.Read(read=datasets.Dataset.from_list(DOCUMENTS))}, output=str(user.folder / "out")
    )
    assert len(gm.run(recipe, progress=False).dataset()) == 100
    assert datasets.load_from_disk(str(user.folder / "out"))["train"]["id"] == [f"d{n}" for n in range(100)]


def test_the_output_in_load_dataset(user, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", user.folder / "cache")
    user.save("data/train.jsonl", DOCUMENTS[:90])
    user.save("data/val.jsonl", DOCUMENTS[90:])
    user.run("sources: {web: {read: data, splits: by_name}}\noutput: out\n")
    loaded = datasets.load_dataset(str(user.folder / "out"), cache_dir=str(user.folder / "cache"))
    assert {split: loaded[split]["id"] for split in loaded} == {
        "train": [document["id"] for document in DOCUMENTS[:90]],
        "validation": [document["id"] for document in DOCUMENTS[90:]],
    }


def test_a_loader_with_workers_resumes(user):
    torch_data = pytest.importorskip("torch.utils.data")
    from gristmill.stream import Stream
    from gristmill.stream.torch import TorchDataset

    trained(user.folder / "tokenizer")
    user.save("data/a.jsonl", DOCUMENTS)
    user.run(
        "sources: {web: {read: data/*.jsonl}}\noutput: out\nsteps:\n  - tokenize: {tokenizer: tokenizer}\n"
        "  - pack: {row_length: 32}\n"
    )

    def batches(dataset):
        return torch_data.DataLoader(dataset, batch_size=None, num_workers=1)

    dataset = TorchDataset(Stream(str(user.folder / "out"), seed=7, epochs=1), batch_size=4)
    every = list(batches(dataset))
    resumed = TorchDataset(Stream(str(user.folder / "out"), seed=7, epochs=1), batch_size=4)
    resumed.load_state_dict(json.loads(json.dumps(dataset.state_after(every[2]))))
    rest = list(batches(resumed))
    assert [batch["input_ids"].tolist() for batch in rest] == [batch["input_ids"].tolist() for batch in every[3:]]


def test_calls_of_tools_and_reasoning(chats):
    chats.save("tokenizer/chat_template.jinja", CALLING)
    call = {"type": "function", "function": {"name": "grind", "arguments": {"sacks": 3}}}
    messages = [
        {"role": "user", "content": "Grind three."},
        {"role": "assistant", "content": "", "reasoning_content": "Three it is.", "tool_calls": [call]},
        {"role": "tool", "content": "done"},
        {"role": "assistant", "content": "Ground."},
    ]
    text = trained_text(chats.rows([{"messages": messages}] * 3, render="{}"))
    assert text.count("<think>Three it is.</think>") == text.count('"sacks"') == text.count("Ground.<|im_end|>") == 3


@pytest.mark.parametrize(("how", "num_rows"), [("split", 4), ("truncate", 2), ("drop", 1)])
def test_long_documents(user, how, num_rows):
    trained(user.folder / "tokenizer")
    user.save("data/a.jsonl", [{"text": "mill " * 3}, {"text": "the corn " * 30}])
    dataset = user.run(
        "sources: {web: {read: data/*.jsonl}}\noutput: out\nsteps:\n  - tokenize: {tokenizer: tokenizer}\n"
        f"  - pack: {{row_length: 24, strategy: pad, long_documents: {how}, min_utilisation: 0}}\n"
    )
    assert len(dataset) == num_rows


def test_a_sample_of_one_percent(user):
    user.save("data/a.jsonl", DOCUMENTS * 50)
    dataset = user.run(
        "sources: {web: {read: data/*.jsonl}}\noutput: out\nsteps: [{sample: {fraction: 0.01}}]\n", "--set", "seed=3"
    )
    assert 20 < len(dataset) < 90


def test_why_was_this_dropped(user):
    user.save("data/a.jsonl", [*DOCUMENTS, {"id": "short", "text": "no"}])
    user.run("sources: {web: {read: data/*.jsonl}}\noutput: out\nsteps: [{length: {min_chars: 10}}]\n")
    answer = user.gristmill("explain", "recipe.yaml", "data/a.jsonl:100")
    assert "too_short" in answer
    assert "dropped" in answer


def test_no_document_of_an_earlier_dataset(user):
    user.save("old.jsonl", DOCUMENTS[:40])
    user.save("old.yaml", "sources: {web: {read: old.jsonl}}\noutput: old\n")
    user.gristmill("run", "old.yaml")
    user.save("data/a.jsonl", DOCUMENTS)
    dataset = user.run(
        "sources: {web: {read: data/*.jsonl}}\noutput: out\n"
        "steps: [{deduplicate: {kind: exact, against: {read: old}}}]\n"
    )
    assert len(dataset) == 60


def test_a_plan_for_32_machines(user):
    user.save("data/a.jsonl", DOCUMENTS)
    user.save("recipe.yaml", "sources: {web: {read: data/*.jsonl}}\noutput: out\nsteps: [deduplicate]\n")
    words = ["--cluster", "32x32", "--size", "10TB", "--price", "core_hour=0.04", "--json"]
    estimate = json.loads(user.gristmill("plan", "recipe.yaml", *words, stderr=False))["cluster"]
    assert (estimate["nodes"], estimate["input_bytes"]) == (32, 10**13)
    assert estimate["costs"]["core_hour"] > 0


def test_several_machines_without_a_cluster(user):
    """Each makes a dataset of its own files; another run removes what they have in common."""
    for machine, documents in enumerate((DOCUMENTS[:60], DOCUMENTS[40:])):
        user.save(f"data/{machine}.jsonl", documents)
        user.save(f"{machine}.yaml", f"sources: {{web: {{read: data/{machine}.jsonl}}}}\noutput: parts/{machine}\n")
        user.gristmill("run", f"{machine}.yaml")
    dataset = user.run(
        "sources: {web: {read: [parts/0, parts/1]}}\noutput: out\nsteps: [{deduplicate: {kind: exact}}]\n"
    )
    assert len(dataset) == 100
