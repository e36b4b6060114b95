"""Records written and read again with plain tools: what goes in and what comes out, to be compared as Python values.

Nulls and missing keys are one in tables, so records are compared without nulls. Bytes and times are not used here.
"""

import io
import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq


def without_nulls(value):
    """A record as a table can hold it: keys of objects whose value is null are left out."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def to_json_lines(records):
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def to_tar(records):
    """`N.txt` is the text, `N.json` all else."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for number, record in enumerate(records):
            rest = {key: value for key, value in record.items() if key != "text"}
            for name, content in (("txt", record["text"].encode()), ("json", json.dumps(rest).encode())):
                member = tarfile.TarInfo(f"{number:04d}.{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return sink.getvalue()


def written_records(folder, format, loads=json.loads, *, has_keys=False):
    """The records in the shards of a finished dataset, without their origins; `loads` decodes JSON.

    `has_keys`: they came from a tar, so that the names of members are keys of theirs.
    """
    suffix = {"jsonl": "jsonl", "webdataset": "tar"}.get(format, format)
    paths = sorted(path for path in folder.glob(f"train/*/*.{suffix}") if ".origins." not in path.name)
    records = [record for path in paths for record in _READERS[format](path, loads)]
    if format == "webdataset" and not has_keys:
        for record in records:
            del record["__key__"]
    return [_merged(record) for record in records]


def _json_lines(path, loads):
    return [loads(line) for line in path.read_bytes().split(b"\n") if line]


def _arrow(path, loads):
    return _rows(pa.ipc.open_stream(path.read_bytes()).read_all(), loads)


def _parquet(path, loads):
    return _rows(pq.read_table(path), loads)


def _rows(table, loads):
    """Columns with a note that their texts are JSON are decoded."""
    is_json = {field.name for field in table.schema if b"json" in (field.metadata or {})}
    rows = []
    for row in table.to_pylist():
        row.pop("origin")
        rows.append({name: loads(v) if name in is_json and v is not None else v for name, v in row.items()})
    return rows


def _tar(path, loads):
    records = {}
    with tarfile.open(path) as tar:
        for member in tar:
            key, _, extension = member.name.partition(".")
            content = tar.extractfile(member).read()
            record = records.setdefault(key, {"__key__": key})
            record.update({"text": content.decode()} if extension == "txt" else loads(content))
    return list(records.values())


def _merged(record):
    """What had no column is put back among the other keys."""
    rest = record.pop("other_fields", None) or {}
    record = without_nulls(record)
    assert not record.keys() & rest.keys()
    return without_nulls({**record, **rest})


_READERS = {"jsonl": _json_lines, "webdataset": _tar, "arrow": _arrow, "parquet": _parquet}
