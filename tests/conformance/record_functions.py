"""Functions that the example steps call: each does something else with each record, and fails for some."""

import pyarrow as pa
import pyarrow.compute as pc


def keep(record):
    if "1" in record["text"]:
        raise ValueError("a one")
    if "2" in record["text"]:
        return None
    return len(record["text"]) % 2 == 0


def change(record):
    if not record["text"]:
        return None
    return {**record, "text": record["text"] * 2, "url": 5 if "0" in record["text"] else record["url"]}


def score(record):
    record["score"] = len(record["text"]) if "0" not in record["text"] else "high"
    return record


def change_batch(batch):
    if pc.any(pc.match_substring(batch["text"], "0")).as_py():
        raise ValueError("a zero")
    return batch.set_column(batch.schema.get_field_index("text"), "text", pc.utf8_upper(batch["text"]))


def keep_rows(batch):
    return batch.filter(pc.greater(pc.utf8_length(batch["text"]), 2))


def twice(batch):
    rows = [row for row in range(batch.num_rows) for _ in range(2)]
    doubled = batch.take(pa.array(rows, pa.int64()))
    origin = doubled["origin"]
    parts = pa.array([index % 2 for index in range(len(rows))], pa.uint32())
    origins = pa.StructArray.from_arrays(
        [origin.field("file"), origin.field("position"), parts], fields=list(origin.type)
    )
    return doubled.set_column(0, "origin", origins)
