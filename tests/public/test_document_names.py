"""What the documents name in back-ticks exists: paths, names of code, commands with their options, make targets."""

import ast
import builtins
import re
import shlex
from importlib import import_module
from pathlib import Path

import click
import pytest

from gristmill.cli.main import COMMANDS
from gristmill.text.quality.counting import SCORES

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "gristmill"
DOCUMENTS = [ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING", "benchmarks/README")]
DOCUMENTS += [
    *sorted(ROOT.glob("docs/**/*.md")),
    ROOT / "AGENTS.md",
    ROOT / "SECURITY.md",
    *ROOT.glob("skills/*/SKILL.md"),
]
each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")
PATH = re.compile(r"[\w.-]+(/[\w.*<>-]+)*/?")
NAME = re.compile(r"[A-Za-z_][\w.]*(\(\))?")
CLASS = re.compile(r"[A-Z][a-z0-9]+([A-Z][a-z0-9]*)+")

USERS_FILES = {"functions.py", "script.py", "train.py", "example.py"}
"""Files of the reader, in examples."""

FOREIGN_FILES = {"merge_datasets.py", "preprocess_data.py", "random.py"}

FOREIGN_CLASSES = {
    *("C4QualityFilter", "FineWebQualityFilter", "GopherQualityFilter", "GopherRepetitionFilter", "JsonlReader"),
    *("LambdaFilter", "LanguageFilter", "LocalPipelineExecutor", "NGramsDecontFilter", "PIIFormatter", "ParquetReader"),
    *("URLFilter", "WarcReader"),
    *("AutoTokenizer", "BatchSampler", "DataCollatorForSeq2Seq", "DataLoader", "DatasetDict", "DistributedSampler"),
    *("DPOTrainer", "KTOTrainer"),
    *("DataCollatorWithFlattening", "DataFrame", "DocumentTokenizer", "IterableDataset", "ProcessPoolExecutor"),
    *(
        "RandomMix",
        "RecordBatch",
        "RecordBatchReader",
        "SFTConfig",
        "SFTTrainer",
        "TokenizerConfig",
        "ShareGPT",
        "StatefulDataLoader",
        "ThreadPool",
    ),
}
"""Classes of libraries that the documents compare with, or hand data to."""

OTHER_NAMES = {
    *(
        "DataCollatorWithFlattening",
        "adlfs",
        "PR_SET_PDEATHSIG",
        "REM",
        "deu",
        "local_dir",
        "max_map_count",
        "multi_process",
        "nolock",
        "runpy",
        "uv",
        "val_check_interval",
        "vm",
    ),
    *("zstdcat", "Unreleased"),
    *("dropped_rows", "helpers", "manager", "settled"),  # advice in CONTRIBUTING
    # the other tool of a guide "from …"
    *("RandomMix", "ThreadPool", "imap_unordered", "initializer", "maxtasksperchild", "pool", "rename_column"),
    *("split_by_node", "split_by_worker", "train_test_split"),
    *(
        "found_by_tags",
        "found_by_sentinels",
        "found_by_prefixes",
        "lost_plain",
        "lost_call",
        "lost_after_result",
    ),  # put together from two words
    *("skipped_metadata", "skipped_request", "images_not_set", "videos_not_set", "audios_not_set"),  # the same
    *("padding_free", "prepare_data_loader"),  # of TRL and Accelerate
    *("assistant_only_loss", "completion_only_loss", "unpair_preference_dataset"),  # of TRL
    *("train_on_inputs", "message_field_training", "sequence_len", "dataset_prepared_path"),  # of axolotl
    *("field_system", "field_tools", "field_prompt", "field_chosen", "field_rejected"),
    *("empty_chosen", "empty_rejected"),  # put together from two words
    "AZURE_STORAGE_ACCOUNT_NAME",  # a variable that the client of a store reads
    *("CITATION.cff", "KEY.jpg", "jpg", "news.mbox"),  # files of a user
    *("a_b", "aB"),  # examples of words
}
"""Names that our sources do not hold, and need not."""

SUFFIXES = (".py", ".md", ".json", ".yaml", ".jsonl", ".bin", ".npy", "_")
"""How other things end that look like names: files, and the beginnings of names (`min_`)."""


def _code_in(document):
    """Every text in back-ticks outside of fenced blocks, on one line."""
    return [" ".join(code.split()) for code in CODE.findall(FENCE.sub("", document.read_text()))]


def _words_of(*patterns):
    files = [path for pattern in patterns for path in ROOT.glob(pattern)]
    return set(re.findall(r"\w+", "\n".join(path.read_text() for path in files)))


@pytest.fixture(scope="module")
def known_words():
    """Every word of the sources: names, recipe keys, columns, reasons. Not those of tests, which name what is gone."""
    texts = ("src/**/*.py", "tests/support/**/*.py", "benchmarks/**/*.py", "examples/**/*.py", "examples/**/*.yaml")
    words = _words_of(*texts, "pyproject.toml", "Makefile", "constraints.txt")
    return words | set(SCORES) | set(dir(builtins)) | OTHER_NAMES | FOREIGN_CLASSES


@pytest.fixture(scope="module")
def class_names():
    trees = [ast.parse(path.read_text()) for path in SOURCES.rglob("*.py")]
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def _is_path_of_ours(code):
    """Whether it is written like a path of the repository: into one of its folders, or to a Python file."""
    if not PATH.fullmatch(code):
        return False
    folders = {path.name for base in (ROOT, SOURCES) for path in base.iterdir() if path.is_dir()}
    first, slash, _ = code.partition("/")
    return (slash == "/" and first in folders) or (code.endswith(".py") and code not in USERS_FILES | FOREIGN_FILES)


def _exists(code, document):
    pattern = re.sub(r"<\w+>", "*", code.rstrip("/"))  # backends/<name>.py
    bases = (document.parent, ROOT, SOURCES)
    return any(any(base.glob(pattern)) for base in bases) or any(SOURCES.rglob(pattern))


@each_document
def test_paths_exist(document):
    assert [code for code in _code_in(document) if _is_path_of_ours(code) and not _exists(code, document)] == []


@each_document
def test_names_of_code_exist(document, known_words, class_names):
    names = [code.removesuffix("()") for code in _code_in(document) if NAME.fullmatch(code)]
    names = [name for name in names if not name.endswith(SUFFIXES)]
    unknown = [name for name in names if name not in OTHER_NAMES and not set(name.strip(".").split(".")) <= known_words]
    classes = {part for name in names for part in name.split(".") if CLASS.fullmatch(part)}
    assert unknown + sorted(classes - class_names - FOREIGN_CLASSES - set(dir(builtins))) == []


def _find_command(words):
    """The click command that the words begin with, and the words that are left."""
    command = getattr(import_module(COMMANDS[words[0]][0]), f"{words[0]}_command")
    words = words[1:]
    while isinstance(command, click.Group) and words and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    return command, words


@each_document
def test_commands_and_options_exist(document):
    for code in _code_in(document):
        if not re.match(r"gristmill [a-z]", code):
            continue
        words = shlex.split(code)[1:]
        assert words[0] in COMMANDS, code
        command, rest = _find_command(words)
        options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        wrong = [word for word in rest if word.startswith("--") and word.partition("=")[0] not in options | {"--help"}]
        assert wrong == [], code


@each_document
def test_make_targets_exist(document):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {code.split()[1] for code in _code_in(document) if re.match(r"make [a-z-]+( |$)", code)}
    assert named - targets == set()


@each_document
def test_scripts_and_their_options_exist(document):
    for code in _code_in(document):
        words = code.split()
        if len(words) > 1 and words[0] == "python" and words[1].endswith(".py") and words[1] not in USERS_FILES:
            script = ROOT / words[1]
            assert script.exists(), code
            siblings = "".join(path.read_text() for path in script.parent.glob(f"{script.stem}*.py"))
            siblings += "".join(path.read_text() for path in script.parent.glob("results.py"))
            options = [word.strip("[]").partition("=")[0] for word in words if word.strip("[").startswith("--")]
            assert [option for option in options if f'"{option}"' not in siblings] == [], code
