"""The small files that follow from the manifest. `gristmill verify` computes them again and compares.

`report.json` says what went in, what each step left, and what came out. What has to be read from the shards, and what
was measured, is added by `gristmill.report`; `docs/reference/report.schema.json` describes the keys of both parts.

`README.md` makes `datasets.load_dataset(folder)` and the Hub's viewer work, and the others, for Arrow shards,
`datasets.load_from_disk(folder)`, which maps them. `dataset_info.json` names no
features: every version of `datasets` then takes them from the Arrow schema.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from gristmill.core.books import Account, count_left_out_tokens
from gristmill.core.splits import TRAIN
from gristmill.shards.manifest import Decontaminated, KeptBest  # noqa: TC001
from gristmill.shards.stored_files import MixedShare, StoredFile

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gristmill.shards.manifest import Manifest
    from gristmill.shards.stored_files import Shard


REPORT = "report.json"
REPORT_PAGE = "report.html"
REPORT_VERSION = 3
"""Raised with every change of a key's meaning."""
CARD = "README.md"
_ENDINGS = {"arrow": ".arrow", "parquet": ".parquet", "webdataset": ".tar", "jsonl": ".jsonl*"}
_NOT_WORD = re.compile(r"\W")
"""What `datasets` allows in no name of a split."""
_CONFIGS = re.compile(rb"^configs: \[.*\]\n", re.MULTILINE)
"""The line of a card that is ours."""
_FAILED = "failed:"
_NO_CHECKSUM = b'"checksum": ""'


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """The sums over all sources: records, rows, tokens and bytes that went in and came out."""

    input_files: int
    input_bytes: int
    records_in: int
    """Records that were read."""
    records_created: int
    records_dropped: int
    records_quarantined: int
    records_out: int
    """Records that are in the dataset, in rows of tokens or as they are."""
    rows: int
    tokens: int
    """Tokens in the shards, without padding; 0 for documents."""
    trained_tokens: int
    shards: int
    shard_bytes: int


class FunnelStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The records of a source that one step has left, and why the others are gone."""

    step: str
    documents: int
    text_bytes: int = 0
    """Bytes of text in the documents that are left."""
    tokens: int = 0
    dropped: dict[str, int] = {}
    """Documents by the first rule that they broke."""
    failed: dict[str, int] = {}
    """Documents by every rule that they broke."""
    quarantined: dict[str, int] = {}


class SourceMix(msgspec.Struct, frozen=True, kw_only=True):
    """The share of one source in the dataset, and the share that was asked for."""

    input_files: int
    input_bytes: int
    rows: int
    tokens: int
    trained_tokens: int
    share: float
    """Its share of all tokens, or of all rows where there are no tokens, in the split `train` if there is one."""
    wanted_share: float | None
    """The share that the step `mix`, or else `mixture` for training, asks for; None: nothing was asked for."""


class SplitSize(msgspec.Struct, frozen=True, kw_only=True):
    """The size of one split."""

    rows: int
    tokens: int
    shards: int
    bytes: int


class RowFilling(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one source: tokens, padding, and what is not in them."""

    rows: int
    row_length: int
    tokens: int
    padding: int
    filled: float
    """Tokens as a share of all places in rows."""
    split_documents: int
    truncated_tokens: int
    dropped_tokens: int
    left_out_tokens: int
    """All tokens of its documents that are in no row: also those that chats were shortened by and cut by."""


class Duplicates(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one `deduplicate` step, without texts."""

    removed: int
    verify: str
    loss: dict[str, dict[str, int]]
    cluster_sizes: dict[str, int]
    counts: dict[str, int]


class ScoreSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of one source and stage: their file, and a histogram of each."""

    source: str
    stage: int
    file: str
    documents: int
    histograms: dict[str, Any]


class DatasetReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in a report that follows from the manifest."""

    report_version: int
    checksum: str = ""
    """The xxh3 hash of the file with this field empty."""
    dataset_hash: str
    fingerprint: str
    kind: str
    format: str
    totals: Totals
    funnel: dict[str, list[FunnelStep]]
    """Source -> its steps, in order."""
    sources: dict[str, SourceMix]
    wanted_by: str | None
    """What asks for shares: `mix`, the step, or `mixture`, the weights for training."""
    splits: dict[str, SplitSize]
    packing: dict[str, RowFilling]
    """By source; empty where rows have no fixed length."""
    duplicates: list[Duplicates]
    decontamination: list[Decontaminated]
    best: list[KeptBest]
    scores: list[ScoreSummary]
    quarantined: dict[str, dict[str, int]]
    """By source and reason."""
    dropped_files: list[str]
    books: dict[str, list[Account]]
    tokenizer: dict[str, Any]
    """Name, hash of the content, size of the vocabulary and engine; empty where there are no tokens."""
    columns: dict[str, str]
    recipe: dict[str, Any]
    versions: dict[str, str]
    plugins: dict[str, str]
    environment_dependent: bool


def make_derived_files(manifest: Manifest) -> dict[str, bytes]:
    """Make all small files that follow from the manifest: path in the dataset's folder -> content."""
    return {**make_side_files(manifest), REPORT: encode_report(make_report(manifest))}


def encode_report(report: DatasetReport) -> bytes:
    """Encode a report as JSON for people and programs, with its checksum."""
    content = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(report, checksum="")), indent=2) + b"\n"
    return content.replace(_NO_CHECKSUM, b'"checksum": "%s"' % xxhash.xxh3_128_hexdigest(content).encode(), 1)


def is_report_of(content: bytes, derived: bytes) -> bool:
    """Tell whether a report was not changed, and agrees with what follows from the manifest. It may hold more."""
    try:
        report = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    if not isinstance(report, dict):
        return False
    checksum = str(report.get("checksum"))
    unsealed = content.replace(b'"checksum": "%s"' % checksum.encode(), _NO_CHECKSUM, 1)
    if xxhash.xxh3_128_hexdigest(unsealed) != checksum:
        return False
    expected: dict[str, Any] = msgspec.json.decode(derived)
    return all(report.get(name) == value for name, value in expected.items() if name != "checksum")


def find_report_page(content: bytes) -> StoredFile | None:
    """Find the page that a report was shown on, if it has one."""

    class PageHead(msgspec.Struct):
        page: StoredFile | None = None

    try:
        return msgspec.json.decode(content, type=PageHead).page
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def make_report(manifest: Manifest) -> DatasetReport:
    """Make the part of a report that follows from the manifest."""
    wanted_by, weights = _find_wanted_shares(manifest)
    return DatasetReport(
        report_version=REPORT_VERSION,
        dataset_hash=manifest.dataset_hash,
        fingerprint=manifest.fingerprint,
        kind=manifest.kind,
        format=manifest.format,
        totals=_add_up_totals(manifest),
        funnel={
            source: [_describe_account(account) for account in manifest.books[source]]
            for source in sorted(manifest.books)
        },
        sources=_describe_sources(manifest, weights),
        wanted_by=wanted_by,
        splits=_describe_splits(manifest),
        packing=_describe_packing(manifest),
        duplicates=[
            Duplicates(
                removed=step.rows,
                verify=step.verify,
                loss=step.loss,
                cluster_sizes=step.cluster_sizes,
                counts=step.counts,
            )
            for step in manifest.deduplicated
        ],
        decontamination=manifest.decontaminated,
        best=manifest.best or [],
        scores=_describe_scores(manifest),
        quarantined=manifest.quarantine.counts,
        dropped_files=[file.path for file in manifest.dropped],
        books={source: manifest.books[source] for source in sorted(manifest.books)},
        tokenizer=_describe_tokenizer(manifest),
        columns=manifest.schema.columns,
        recipe=manifest.recipe,
        versions=manifest.versions,
        plugins=manifest.plugins,
        environment_dependent=manifest.environment_dependent,
    )


def _add_up_totals(manifest: Manifest) -> Totals:
    shards = [shard for _, _, shard in manifest.shards()]
    accounts = [account for books in manifest.books.values() for account in books]
    return Totals(
        input_files=len(manifest.files),
        input_bytes=sum(file.bytes for file in manifest.files.values()),
        records_in=sum(books[0].records_in for books in manifest.books.values() if books),
        records_created=sum(account.created for account in accounts),
        records_dropped=sum(account.dropped.total() for account in accounts),
        records_quarantined=sum(account.quarantined.total() for account in accounts),
        records_out=sum(books[-1].records_out for books in manifest.books.values() if books),
        rows=sum(shard.rows for shard in shards),
        tokens=sum(shard.tokens or 0 for shard in shards),
        trained_tokens=sum(shard.trained_tokens or 0 for shard in shards),
        shards=len(shards),
        shard_bytes=sum(shard.bytes for shard in shards),
    )


def _describe_account(account: Account) -> FunnelStep:
    """Describe what one step has left, and why the rest is gone: by the first rule that failed, and by all that did."""
    failed = {name.removeprefix(_FAILED): count for name, count in account.counters.items() if name.startswith(_FAILED)}
    return FunnelStep(
        step=account.step,
        documents=account.records_out,
        text_bytes=account.text_bytes,
        tokens=account.tokens or account.counters["row_tokens"],
        dropped=dict(sorted(account.dropped.items())),
        failed=dict(sorted(failed.items())),
        quarantined=dict(sorted(account.quarantined.items())),
    )


def _find_wanted_shares(manifest: Manifest) -> tuple[str | None, dict[str, float]]:
    """Find what asks for shares of the sources (`mix` or `mixture`), and the shares, which add up to 1."""
    weights: dict[str, object] = {}
    wanted_by = None
    steps = manifest.recipe.get("steps")
    for step in [manifest.recipe, *(steps if isinstance(steps, list) else ())]:  # `gristmill mix` has no steps
        if isinstance(step, dict) and isinstance(parameters := step.get("mix"), dict):
            wanted_by, weights = "mix", parameters.get("weights") or {}
            if parameters.get("by", "tokens") != "tokens" and any(a.tokens for a in manifest.amounts().values()):
                weights = {}  # the shares that are shown are of tokens: these cannot be compared with them
    if wanted_by is None and manifest.mixture:
        wanted_by, weights = "mixture", {**manifest.mixture}
    known_weights = {source: weight for source, weight in weights.items() if isinstance(weight, int | float)}
    total = sum(known_weights.values())
    return wanted_by, {source: weight / total for source, weight in known_weights.items()} if total > 0 else {}


def _describe_sources(manifest: Manifest, weights: dict[str, float]) -> dict[str, SourceMix]:
    files, input_bytes = Counter[str](), Counter[str]()
    for file in manifest.files.values():
        files[file.source] += 1
        input_bytes[file.source] += file.bytes
    amounts = manifest.amounts()
    # Shares are asked for in training; validation has as much of each source as was split off.
    in_training = manifest.amounts(TRAIN if TRAIN in manifest.splits else None)
    parts = {source: amount.tokens or 0 for source, amount in in_training.items()}
    if not any(parts.values()):
        parts = {source: amount.rows for source, amount in in_training.items()}
    whole = sum(parts.values())
    sources = {}
    for source in sorted({*manifest.books, *amounts}):
        amount = amounts.get(source, MixedShare(rows=0))
        sources[source] = SourceMix(
            input_files=files[source],
            input_bytes=input_bytes[source],
            rows=amount.rows,
            tokens=amount.tokens or 0,
            trained_tokens=amount.trained_tokens or 0,
            share=parts.get(source, 0) / whole if whole else 0.0,
            wanted_share=weights.get(source),
        )
    return sources


def _describe_splits(manifest: Manifest) -> dict[str, SplitSize]:
    return {
        split: SplitSize(
            rows=sum(shard.rows for shards in sources.values() for shard in shards),
            tokens=sum(shard.tokens or 0 for shards in sources.values() for shard in shards),
            shards=sum(len(shards) for shards in sources.values()),
            bytes=sum(shard.bytes for shards in sources.values() for shard in shards),
        )
        for split, sources in manifest.splits.items()
    }


def _describe_packing(manifest: Manifest) -> dict[str, RowFilling]:
    packing = {}
    for source in sorted(manifest.books):
        counts = manifest.books[source][-1].counters if manifest.books[source] else Counter[str]()
        if manifest.row_length is None or not counts["rows"]:
            continue
        places = counts["rows"] * manifest.row_length
        packing[source] = RowFilling(
            rows=counts["rows"],
            row_length=manifest.row_length,
            tokens=counts["row_tokens"],
            padding=places - counts["row_tokens"],
            filled=counts["row_tokens"] / places,
            split_documents=counts["split_documents"],
            truncated_tokens=counts["truncated_tokens"],
            dropped_tokens=counts["dropped_tokens"],
            left_out_tokens=count_left_out_tokens(manifest.books[source]),
        )
    return packing


def _describe_scores(manifest: Manifest) -> list[ScoreSummary]:
    """Describe the files of scores, with a histogram for each column."""
    if not manifest.scores:
        return []
    from gristmill.shards.score_file import describe_histograms  # noqa: PLC0415  (few recipes have filters by scores)

    return [
        ScoreSummary(
            source=file.source,
            stage=file.stage,
            file=file.path,
            documents=file.rows,
            histograms=describe_histograms(file),
        )
        for file in manifest.scores
    ]


def _describe_tokenizer(manifest: Manifest) -> dict[str, Any]:
    tokenizer = manifest.tokenizer
    if tokenizer is None:
        return {}
    return {
        "name": tokenizer.name,
        "content": tokenizer.content,
        "vocab_size": tokenizer.vocab_size,
        "engine": tokenizer.engine,
        "engine_version": tokenizer.engine_version,
    }


def make_side_files(manifest: Manifest) -> dict[str, bytes]:
    """Make the files: their paths in the dataset's folder and their contents.

    A split without shards is left out, because `datasets` would refuse the whole folder.
    """
    shards_of: dict[str, list[Shard]] = {}
    for split, _, shard in manifest.shards():
        shards_of.setdefault(split, []).append(shard)
    files = {CARD: make_card(shards_of, manifest.format)} if shards_of else {}
    if manifest.format != "arrow":
        return files
    files["dataset_dict.json"] = _json({"splits": list(shards_of)})
    for split, shards in shards_of.items():
        names = [shard.path.removeprefix(f"{split}/") for shard in shards]
        files[f"{split}/state.json"] = make_state(split, names, manifest.dataset_hash)
        files[f"{split}/dataset_info.json"] = make_info()
    return files


def make_card(splits: Iterable[str], format: str) -> bytes:
    """Make the head of a card: it tells `datasets.load_dataset` and the Hub which files are those of a split."""
    files = [{"split": _NOT_WORD.sub("_", split), "path": f"{split}/*/*{_ENDINGS[format]}"} for split in splits]
    configs = [{"config_name": "default", "data_files": files}]
    return b"---\nconfigs: %s\n---\n" % msgspec.json.encode(configs)  # JSON is YAML


def update_card(card: bytes, new_card: bytes) -> bytes:
    r"""Return a card for the files of now, `new_card`, with all that people have written into it.

    >>> update_card(b"---\nconfigs: [a]\n---\n# Ours", b"---\nconfigs: [b]\n---\n")
    b'---\nconfigs: [b]\n---\n# Ours'
    """
    return _CONFIGS.sub(lambda _: _CONFIGS.findall(new_card)[0], card, count=1) if card else new_card


def is_card_of(card: bytes, new_card: bytes) -> bool:
    """Tell whether a card, to which people may have added, names the files of now."""
    has_head = card.startswith(b"---\n") and b"\n---\n" in card
    return has_head and _CONFIGS.search(card) is not None and update_card(card, new_card) == card


def make_state(split: str, names: list[str], dataset_hash: str) -> bytes:
    """Make `state.json` of a split: its files, by their paths in its folder."""
    state: dict[str, object] = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": f"{dataset_hash[:16]}-{split}",
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split,
    }
    return _json(state)


def make_info() -> bytes:
    """Make `dataset_info.json` of a split."""
    return _json({"description": "", "citation": "", "homepage": "", "license": ""})


def _json(content: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
