"""Which tokens of the chats in `chats` are trained, as functions for `map_batches`.

Apart from the rest, because a function is fingerprinted with all that its file imports.
"""

import pyarrow as pa

ASSISTANT, END = 2, 3


def marks(ids):
    """Which of a chat's ids are trained."""
    mask, is_answer = [], False
    for token in ids:
        mask.append(is_answer)
        is_answer = token == ASSISTANT or (is_answer and token != END)
    return mask


def mark_answers(batch):
    masks = [marks(ids) for ids in batch.column("input_ids").to_pylist()]
    return batch.append_column("loss_mask", pa.array(masks, pa.list_(pa.bool_())))


def shorten_ids(batch):
    """The ids alone, so that they do not fit the masks."""
    ids = batch.column("input_ids")
    shorter = pa.array([some[:-1] for some in ids.to_pylist()], ids.type)
    return batch.set_column(batch.schema.get_field_index("input_ids"), "input_ids", shorter)


def count_marks(batch):
    masks = [[int(is_trained) for is_trained in marks(ids)] for ids in batch.column("input_ids").to_pylist()]
    return batch.append_column("loss_mask", pa.array(masks, pa.list_(pa.int64())))
