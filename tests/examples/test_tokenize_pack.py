"""The example that people copy, run with real arguments: backends give the same rows, debug mode writes nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import gristmill as gm

EXAMPLE = Path(__file__).parents[2] / "examples" / "tokenize_pack.py"
TEXTS = [f"The  mill grinds sack number {n % 250} of many, and the miller writes it down." for n in range(300)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenize_pack")
    (folder / "data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in [*TEXTS, "short"]))
    gm.train_tokenizer(TEXTS, folder / "tokenizer", vocab_size=320)
    return folder


def run_example(folder, *arguments):
    paths = ["--src", "data.jsonl", "--tokenizer", "tokenizer", "--seq-len", "128"]
    command = [sys.executable, str(EXAMPLE), *paths, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_backends_give_the_same_rows(folder):
    shown = run_example(folder, "--dst", "serial", "--backend", "serial")
    run_example(folder, "--dst", "processes", "--workers", "2")
    for backend in ("threads", "auto"):
        run_example(folder, "--dst", backend, "--backend", backend, "--workers", "2")
        assert (
            gm.open_dataset(folder / backend).manifest.dataset_hash
            == gm.open_dataset(folder / "serial").manifest.dataset_hash
        )
    serial, processes = (gm.open_dataset(folder / name) for name in ("serial", "processes"))
    assert serial.manifest.dataset_hash == processes.manifest.dataset_hash
    assert serial.manifest.row_length == 128
    documents = {text for row in range(len(serial)) for text in serial.documents(row)}
    assert {text.removesuffix("<|endoftext|>") for text in documents} == {" ".join(text.split()) for text in TEXTS}
    assert "duplicate" in shown
    assert "rows, " in shown


@pytest.mark.slow
def test_a_cluster_gives_the_same_rows(folder):
    pytest.importorskip("ray")
    run_example(folder, "--dst", "one", "--backend", "serial")
    run_example(folder, "--dst", "ray", "--backend", "ray", "--workers", "2")
    hashes = {gm.open_dataset(folder / name).manifest.dataset_hash for name in ("one", "ray")}
    assert len(hashes) == 1


def test_debug_mode_writes_nothing(folder):
    shown = run_example(folder, "--dst", "debugged", "--debug")
    assert "text · tokenize: " in shown
    assert not (folder / "debugged").exists()


def test_the_example_is_short():
    assert len(EXAMPLE.read_text().splitlines()) <= 60
