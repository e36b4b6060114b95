"""Functions that the golden recipes call."""

import pyarrow as pa
import pyarrow.compute as pc


def add_words(record):
    if record["id"] % 17 == 3:
        raise ValueError("a record that cannot be changed")
    return {**record, "words": len(record["text"].split())}


def is_even(record):
    if record["id"] == 10:
        return "perhaps"
    return record["id"] % 2 == 0


def double_rows(batch):
    rows = [row for row in range(batch.num_rows) for _ in range(2)]
    doubled = batch.take(pa.array(rows, pa.int64()))
    origin = doubled["origin"]
    parts = pa.array([index % 2 for index in range(len(rows))], pa.uint32())
    origins = pa.StructArray.from_arrays(
        [origin.field("file"), origin.field("position"), parts], fields=list(origin.type)
    )
    return doubled.set_column(doubled.schema.get_field_index("origin"), "origin", origins)


def keep_long(batch):
    return batch.filter(pc.greater(pc.utf8_length(batch["text"]), 60))
