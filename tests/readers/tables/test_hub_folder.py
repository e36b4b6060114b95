"""Repositories of the Hub: splits from the card or from exact names, against what `datasets` makes of them."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.core.errors import UsageError
from gristmill.readers.read import Read
from gristmill.readers.source import choose_split_files
from gristmill.storage.paths import find_files


def repository(folder, files, card=None):
    for name in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".parquet"):
            pq.write_table(pa.table({"text": [name]}), path)
        else:
            path.write_text(json.dumps({"text": name}) + "\n")
    if card is not None:
        (folder / "README.md").write_text(card)
    return folder


def splits(folder, **keys):
    read = Read(read=str(folder), **keys)
    found = choose_split_files("web", read, find_files(read.read))
    by_split = {}
    for file in found.files:
        by_split.setdefault(file.split, []).append(file.relative)
    return by_split


def card(configs):
    return f"---\nlicense: mit\n{configs}\n---\n# A dataset\n"


CARDS = {
    "patterns": "configs:\n- config_name: default\n  data_files:\n  - split: train\n    path: data/train-*\n"
    "  - split: test_sft\n    path: data/test_sft-*",
    "lists": "configs:\n- config_name: default\n  data_files:\n  - split: train\n    path: [a/x.parquet, b/*.parquet]\n"
    "  - split: validation\n    path: c/**/z.parquet",
    "no splits": "configs:\n- config_name: default\n  data_files: a/*.parquet",
    "list of patterns": "configs:\n- config_name: default\n  data_files:\n  - a/x.parquet\n  - b/*",
    "data_dir": "configs:\n- config_name: default\n  data_dir: sub",
}
FILES = [
    "data/train-00000-of-00002.parquet",
    "data/train-00001-of-00002.parquet",
    "data/test_sft-00000-of-00001.parquet",
    "a/x.parquet",
    "b/y.parquet",
    "c/d/z.parquet",
    "sub/data/train-00000-of-00001.parquet",
    "sub/data/test-00000-of-00001.parquet",
]


@pytest.mark.parametrize("configs", CARDS.values(), ids=CARDS)
def test_a_card_is_read_as_datasets_reads_it(tmp_path, configs):
    datasets = pytest.importorskip("datasets")
    folder = repository(tmp_path / "repo", FILES, card(configs))
    loaded = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))
    expected = {name: sorted(split["text"]) for name, split in loaded.items()}
    assert splits(folder) == expected


def test_several_configs_are_listed_and_one_is_chosen(tmp_path):
    configs = "\n".join(
        f"- config_name: {name}\n  data_files:\n  - split: train\n    path: {name}/*.parquet" for name in ("en", "de")
    )
    folder = repository(tmp_path, ["en/a.parquet", "de/b.parquet"], card(f"configs:\n{configs}\n  default: true"))
    with pytest.raises(UsageError, match="en, de") as refused:
        splits(folder)
    assert "config: de (the default one)" in refused.value.help
    assert splits(folder, config="en") == {"train": ["en/a.parquet"]}
    with pytest.raises(UsageError, match="config must be one of"):
        splits(folder, config="fr")


def test_exact_names_are_splits(tmp_path):
    files = [name for name in FILES if name.startswith("data/")]
    folder = repository(tmp_path, files, "# no front matter\n")
    assert splits(folder) == {"train": files[:2], "test_sft": files[2:]}
    assert splits(folder, splits={"train": "test_sft"}) == {"train": files[2:]}
    assert splits(folder, splits="all_as_train") == {"train": sorted(files)}


@pytest.mark.parametrize(
    "name",
    [
        "train-00000-of-00001.parquet",
        "data/test.parquet",
        "data/test-0-of-1.parquet",
        "data/sub/test-00000-of-00001.parquet",
        "test/00000.parquet",
        "data/test-00000-of-00001-extra.parquet",
        "data/test-00000-of-00001.jsonl",
        "xdata/test-00000-of-00001.parquet",
    ],
)
def test_no_other_name_makes_a_split(tmp_path, name):
    folder = repository(tmp_path, [name])
    assert splits(folder) == {"": [name]}


def test_a_pattern_or_list_with_names_of_splits_stops_the_plan(tmp_path):
    folder = repository(tmp_path, FILES[:3], card(CARDS["patterns"]))
    for paths in (f"{folder}/data/*.parquet", [f"{folder}/{name}" for name in FILES[:3]], f"{folder}/data"):
        with pytest.raises(UsageError, match="test_sft") as refused:
            choose_split_files("web", Read(read=paths), find_files(paths))
        assert "splits: by_name" in refused.value.help
        assert "splits: all_as_train" in refused.value.help
        assert not choose_split_files("web", Read(read=paths, splits="all_as_train"), find_files(paths)).notes
    paths = f"{folder}/data/train-*"
    assert not choose_split_files("web", Read(read=paths), find_files(paths)).notes


def test_what_a_partly_downloaded_repository_lacks(tmp_path):
    folder = repository(tmp_path / "card", FILES[:2], card(CARDS["patterns"]))
    with pytest.raises(UsageError, match="test_sft"):
        splits(folder)
    assert splits(folder, splits="train") == {"train": FILES[:2]}
    folder = repository(tmp_path / "names", [FILES[0], FILES[2]])
    found = choose_split_files("web", Read(read=str(folder)), find_files(str(folder)))
    assert any("1 of 2" in note for note in found.notes)


def test_a_file_in_two_splits_is_refused(tmp_path):
    data_files = "[{split: train, path: '*.parquet'}, {split: test, path: e.parquet}]"
    configs = f"configs:\n- config_name: x\n  data_files: {data_files}"
    folder = repository(tmp_path, ["t.parquet", "e.parquet"], card(configs))
    with pytest.raises(UsageError, match="two splits"):
        splits(folder)
    assert splits(folder, splits={"train": "train"}) == {"train": ["e.parquet", "t.parquet"]}


def test_a_file_that_is_in_no_split_is_not_lost(tmp_path):
    folder = repository(tmp_path, [*FILES[:3], "data/extra.parquet"])
    with pytest.raises(UsageError, match="extra"):
        splits(folder)


def test_a_card_without_configs_is_no_document(tmp_path):
    folder = repository(tmp_path, ["a.jsonl", "b.jsonl"], card("pretty_name: x"))
    (folder / "LICENSE").write_text("MIT")
    assert splits(folder) == {"": ["a.jsonl", "b.jsonl"]}


def test_old_cards_list_names_of_configs(tmp_path):
    folder = repository(tmp_path, ["a.jsonl"], card("configs:\n- sst2\n- cola"))
    assert splits(folder) == {"": ["a.jsonl"]}


@pytest.mark.parametrize(
    "configs",
    [
        "configs: 5",
        "configs:\n- config_name: [x]",
        "configs:\n- data_files: x",
        "configs:\n- config_name: x\n  data_files: {train: x}",
        "configs:\n- config_name: x\n  data_files:\n  - split: train",
        "configs: [",
        "configs: " + "[" * 5000,
        "configs: !!python/object/apply:os.system ['true']",
        "configs:\n- config_name: x\n  data_files: [{split: ../up, path: a.jsonl}, {split: train, path: a.jsonl}]",
        "configs:\n- config_name: x\n  data_files: ../../etc/passwd",
        "configs:\n- config_name: x\n  data_files: /etc/passwd",
    ],
)
def test_a_broken_or_hostile_card_is_one_clear_error(tmp_path, configs):
    folder = repository(tmp_path, ["a.jsonl"], card(configs))
    with pytest.raises(UsageError):
        splits(folder)


def test_config_without_a_card(tmp_path):
    folder = repository(tmp_path, ["a.jsonl"])
    with pytest.raises(UsageError, match="config"):
        splits(folder, config="en")


@pytest.mark.parametrize("readme", [None, "# A dataset\n", "---\nlicense: mit\n---\n"])
@pytest.mark.parametrize("data", ["train.jsonl", "data/a.csv", "data/a.parquet"])
def test_files_about_a_dataset_are_left_out_of_a_folder(tmp_path, readme, data):
    about = ["LICENSE", "LICENSE.txt", "CITATION.cff", ".gitattributes", "dataset_infos.json"]
    folder = repository(tmp_path / "repo", [data, *about], readme)
    assert splits(folder) == {"": [data]}
    read = Read(read=str(folder))
    assert choose_split_files("web", read, find_files(read.read)).notes


def test_data_with_names_like_those_stays(tmp_path):
    names = ["authors.jsonl", "notice-board.jsonl", "readme.jsonl"]
    assert splits(repository(tmp_path / "repo", [*names, "LICENSE"])) == {"": names}


def test_a_readme_among_texts_is_a_text(tmp_path):
    folder = repository(tmp_path / "repo", ["a.md", "b.txt"], "# A text like others\n")
    assert splits(folder) == {"": ["README.md", "a.md", "b.txt"]}


def test_other_unknown_names_stay_for_the_plan_to_refuse(tmp_path):
    folder = repository(tmp_path / "repo", ["a.jsonl", "b.bin"], "# A dataset\n")
    assert splits(folder) == {"": ["a.jsonl", "b.bin"]}
