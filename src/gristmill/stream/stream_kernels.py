"""The loops of streaming: from row indices to addresses (`find_rows`), and from these to a batch's arrays (`fill`).

A block describes a batch of a shard, a row address describes one of its rows. Both are lines of numbers whose columns
are named here, in the module of the kernels that use them. Kernels read memory at these addresses without checking
them. So every address is checked before: blocks when a shard is opened (`row_table`), and offsets and lengths, which
are data, by `find_rows`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.core.token_kinds import DOCUMENT, PRETOKENIZED
from gristmill.runtime.kernels import kernel
from gristmill.shards.token_rows import MAX_RUN, RUN_BITS

if TYPE_CHECKING:
    from numpy.typing import NDArray


FLOOR = 4096
"""The first address in the arrays that represent memory (`memory`)."""

BLOCK_COLUMNS = 17
B_END_ROW = 0
"""The row of the shard at which the block ends."""
B_ROWS = 1
B_IDS = 2
B_ID_BYTES = 3
B_ROW_LENGTH = 4
"""0: rows differ in length, and B_IDS_OFFSETS says where each begins."""
B_IDS_OFFSETS = 5
B_NUM_IDS = 6
B_LENGTHS_OFFSETS = 7
B_LENGTHS = 8
B_NUM_LENGTHS = 9
B_MASK = 10
"""The loss mask, one bit for each token; 0: all tokens are trained."""
B_KINDS_OFFSETS = 11
B_KINDS = 12
"""The runs of kinds (`shards/token_rows.py`); 0: there are none."""
B_NUM_KINDS = 13
B_WEIGHTS_OFFSETS = 14
B_WEIGHTS = 15
"""The runs of weights; 0: there are none."""
B_NUM_WEIGHTS = 16

ADDRESS_COLUMNS = 13
A_SHARD = 0
"""-1: a row without tokens, which fills up a batch."""
A_STORED = 1
"""The number of tokens with padding."""
A_FILLED = 2
"""The number of tokens without padding."""
A_DOCUMENTS = 3
A_IDS = 4
A_ID_BYTES = 5
A_LENGTHS = 6
A_MASK = 7
A_MASK_BIT = 8
"""The row's first bit in the mask."""
A_KINDS = 9
A_NUM_KINDS = 10
A_WEIGHTS = 11
A_NUM_WEIGHTS = 12

FINE, UNOPENED, DAMAGED = 0, 1, 2

IGNORED = -100
"""The label that PyTorch's cross entropy ignores."""


@kernel
def _find_first_above(ends: NDArray[np.int64], start: int, stop: int, value: int) -> int:
    while start < stop:
        middle = (start + stop) // 2
        if ends[middle] > value:
            stop = middle
        else:
            start = middle + 1
    return start


@kernel
def _count_tokens(lengths: NDArray[np.int32]) -> int:
    """Count the tokens in all documents of a row; -1 if a length is negative."""
    total = 0
    for length in lengths:
        if length < 0:
            return -1
        total += int(length)
    return total


@kernel
def find_rows(
    indices: NDArray[np.int64],
    shard_ends: NDArray[np.int64],
    shard_blocks: NDArray[np.int64],
    blocks: NDArray[np.int64],
    numbers: NDArray[np.int32],
    addresses: NDArray[np.int64],
) -> tuple[int, int]:
    """Fill in the addresses of rows, or return why not (`UNOPENED`, `DAMAGED`) and the shard."""
    for number in range(len(indices)):
        address, index = addresses[number], indices[number]
        address[:] = 0
        if index < 0:
            address[A_SHARD] = -1
            continue
        shard = _find_first_above(shard_ends, 0, len(shard_ends), index)
        first, count = shard_blocks[shard]
        if count == 0:
            return UNOPENED, shard
        row = index - (shard_ends[shard - 1] if shard else 0)
        block = blocks[_find_first_above(blocks[:, B_END_ROW], first, first + count, row)]
        row -= block[B_END_ROW] - block[B_ROWS]
        # Packed rows have one length; other rows have Arrow's offsets, row + 1 of them being the end.
        if block[B_ROW_LENGTH] > 0:
            start, stop = row * block[B_ROW_LENGTH], (row + 1) * block[B_ROW_LENGTH]
        else:
            offset = ((block[B_IDS_OFFSETS] - FLOOR) >> 2) + row
            start, stop = int(numbers[offset]), int(numbers[offset + 1])
        offset = ((block[B_LENGTHS_OFFSETS] - FLOOR) >> 2) + row
        begin, end = int(numbers[offset]), int(numbers[offset + 1])
        if not 0 <= start <= stop <= block[B_NUM_IDS] or not 0 <= begin <= end <= block[B_NUM_LENGTHS]:
            return DAMAGED, shard
        lengths = (block[B_LENGTHS] - FLOOR) >> 2  # from a byte address to an index of int32 values
        filled = _count_tokens(numbers[lengths + begin : lengths + end])
        if not 0 <= filled <= stop - start:
            return DAMAGED, shard
        address[A_SHARD] = shard
        address[A_STORED] = stop - start
        address[A_FILLED] = filled
        address[A_DOCUMENTS] = end - begin
        address[A_IDS] = block[B_IDS] + start * block[B_ID_BYTES]
        address[A_ID_BYTES] = block[B_ID_BYTES]
        address[A_LENGTHS] = block[B_LENGTHS] + 4 * begin
        address[A_MASK] = block[B_MASK]
        address[A_MASK_BIT] = start
        if block[B_KINDS]:
            offset = ((block[B_KINDS_OFFSETS] - FLOOR) >> 2) + row
            begin, end = int(numbers[offset]), int(numbers[offset + 1])
            if not 0 <= begin <= end <= block[B_NUM_KINDS]:
                return DAMAGED, shard
            address[A_KINDS] = block[B_KINDS] + 2 * begin
            address[A_NUM_KINDS] = end - begin
        if block[B_WEIGHTS]:
            offset = ((block[B_WEIGHTS_OFFSETS] - FLOOR) >> 2) + row
            begin, end = int(numbers[offset]), int(numbers[offset + 1])
            if not 0 <= begin <= end <= block[B_NUM_WEIGHTS]:
                return DAMAGED, shard
            address[A_WEIGHTS] = block[B_WEIGHTS] + 4 * begin
            address[A_NUM_WEIGHTS] = end - begin
    return FINE, 0


@kernel
def _fill_ids(
    address: NDArray[np.int64],
    memory_16: NDArray[np.uint16],
    memory_32: NDArray[np.uint32],
    pad_id: int,
    ids: NDArray[np.signedinteger],
) -> None:
    stored = address[A_STORED]
    # Two loops instead of one with a choice inside: the compiler turns each into vector instructions.
    if address[A_ID_BYTES] == 2:
        start = (address[A_IDS] - FLOOR) >> 1
        narrow = memory_16[start : start + stored]
        for position in range(stored):
            ids[position] = narrow[position]
    else:
        start = (address[A_IDS] - FLOOR) >> 2
        wide = memory_32[start : start + stored]
        for position in range(stored):
            ids[position] = wide[position]
    for position in range(stored, len(ids)):
        ids[position] = pad_id


@kernel
def _fill_labels(
    address: NDArray[np.int64],
    bits: NDArray[np.uint8],
    shift: int,
    ids: NDArray[np.signedinteger],
    labels: NDArray[np.signedinteger],
) -> None:
    """Write the ids, or those that follow (`shift` 1), and `IGNORED` for tokens that are not trained."""
    num_trained = max(address[A_FILLED] - shift, 0)
    for position in range(num_trained):
        labels[position] = ids[position + shift]
    for position in range(num_trained, len(labels)):
        labels[position] = IGNORED
    if address[A_MASK]:
        # A bit number over the whole memory: masks are packed, so a row may begin inside a byte.
        first = ((address[A_MASK] - FLOOR) << 3) + address[A_MASK_BIT] + shift
        for position in range(num_trained):
            bit = first + position
            if not (bits[bit >> 3] >> (bit & 7)) & 1:
                labels[position] = IGNORED


@kernel
def _choose_labels(
    address: NDArray[np.int64],
    memory_16: NDArray[np.uint16],
    by_kind: NDArray[np.float32],
    shift: int,
    ids: NDArray[np.signedinteger],
    labels: NDArray[np.signedinteger],
    weights: NDArray[np.float32],
) -> None:
    """Change labels and their weights by the kind of each token; a negative weight leaves them as they are stored."""
    filled = int(address[A_FILLED])
    first = (address[A_KINDS] - FLOOR) >> 1
    num_runs = address[A_NUM_KINDS] if address[A_KINDS] else 1
    begin = 0
    for number in range(num_runs):
        kind: Any = DOCUMENT
        end: Any = filled
        if address[A_KINDS]:
            run = np.int64(memory_16[first + number])  # uint64 and int64 together are a float
            kind, end = run >> RUN_BITS, min(begin + (run & MAX_RUN), filled)
        weight = by_kind[kind]
        if weight >= 0:
            for token in range(max(begin, shift), end):
                labels[token - shift] = ids[token] if weight > 0 else IGNORED
                if len(weights):
                    weights[token - shift] = weight
        begin = end


@kernel
def _multiply_weights(
    address: NDArray[np.int64], memory_float: NDArray[np.float32], shift: int, weights: NDArray[np.float32]
) -> None:
    """Multiply weights by those that are stored: runs of a number of tokens and their weight."""
    filled = int(address[A_FILLED])
    first = (address[A_WEIGHTS] - FLOOR) >> 2
    begin = 0
    for number in range(0, address[A_NUM_WEIGHTS] - 1, 2):
        end = min(begin + max(int(memory_float[first + number]), 0), filled)
        for token in range(max(begin, shift), end):
            weights[token - shift] *= memory_float[first + number + 1]
        begin = end


@kernel
def count_kinds(addresses: NDArray[np.int64], memory_16: NDArray[np.uint16], counts: NDArray[np.int64]) -> None:
    """Count the tokens of rows by kind. Rows without kinds are documents, and with a mask pretokenized."""
    for address in addresses:
        first = (address[A_KINDS] - FLOOR) >> 1
        if not address[A_KINDS]:
            counts[PRETOKENIZED if address[A_MASK] else DOCUMENT] += address[A_FILLED]
        for number in range(address[A_NUM_KINDS]):
            run = np.int64(memory_16[first + number])
            counts[run >> RUN_BITS] += run & MAX_RUN


@kernel
def _fill_documents(
    lengths: NDArray[np.int32],
    positions: NDArray[np.signedinteger],
    documents: NDArray[np.signedinteger],
    ends: NDArray[np.int32],
    num_ends: int,
    first_end: int,
    width: int,
) -> tuple[int, int]:
    """Write the positions, numbers and ends of a row's documents. Padding counts as one more document."""
    longest = 0
    begin = 0
    for document in range(len(lengths) + 1):
        is_padding = document == len(lengths)
        end = width if is_padding else begin + int(lengths[document])
        if len(positions):
            for position in range(end - begin):
                positions[begin + position] = position
        if len(documents):
            documents[begin:end] = -1 if is_padding else document
        if len(ends) and end > begin:
            ends[num_ends] = first_end + end
            num_ends += 1
        longest = max(longest, end - begin)
        begin = end
    return num_ends, longest


@kernel
def _ignore_first_tokens(lengths: NDArray[np.int32], shift: int, labels: NDArray[np.signedinteger]) -> None:
    # The first token of a document follows the last one of another document, which says nothing about it. With
    # `shift` 1 its label is one position earlier; the very first token of a row has no label at all.
    begin = 0
    for length in lengths:
        if length and begin >= shift:
            labels[begin - shift] = IGNORED
        begin += int(length)


@kernel
def fill(
    addresses: NDArray[np.int64],
    memory_16: NDArray[np.uint16],
    memory_32: NDArray[np.uint32],
    numbers: NDArray[np.int32],
    bits: NDArray[np.uint8],
    memory_float: NDArray[np.float32],
    by_kind: NDArray[np.float32],
    pad_id: int,
    shift: int,
    learn_first: int,
    ids: NDArray[np.signedinteger],
    labels: NDArray[np.signedinteger],
    positions: NDArray[np.signedinteger],
    documents: NDArray[np.signedinteger],
    attention: NDArray[np.signedinteger],
    weights: NDArray[np.float32],
    ends: NDArray[np.int32],
) -> tuple[int, int]:
    """Write all arrays of a batch that are not empty; return the number of ends and the longest document."""
    width = ids.shape[1]
    has_labels, has_positions, has_documents = len(labels) > 0, len(positions) > 0, len(documents) > 0
    num_ends, longest = min(len(ends), 1), 0
    ends[:num_ends] = 0
    for row in range(len(addresses)):
        address = addresses[row]
        _fill_ids(address, memory_16, memory_32, pad_id, ids[row])
        first_length = (address[A_LENGTHS] - FLOOR) >> 2
        lengths = numbers[first_length : first_length + address[A_DOCUMENTS]]
        if has_labels:
            row_weights = weights[row] if len(weights) else weights[:0].ravel()
            row_weights[:] = 1
            _fill_labels(address, bits, shift, ids[row], labels[row])
            if len(by_kind):
                _choose_labels(address, memory_16, by_kind, shift, ids[row], labels[row], row_weights)
            if not learn_first:
                _ignore_first_tokens(lengths, shift, labels[row])
            if len(row_weights):
                _multiply_weights(address, memory_float, shift, row_weights)
                for position in range(width):
                    if labels[row, position] == IGNORED:
                        row_weights[position] = 0
        if len(attention):
            attention[row, : address[A_FILLED]] = 1
            attention[row, address[A_FILLED] :] = 0
        if has_positions or has_documents or len(ends):
            row_positions = positions[row] if has_positions else positions[:0].ravel()
            row_documents = documents[row] if has_documents else documents[:0].ravel()
            num_ends, row_longest = _fill_documents(
                lengths, row_positions, row_documents, ends, num_ends, row * width, width
            )
            longest = max(longest, row_longest)
    return num_ends, longest


@kernel
def align_documents(
    addresses: NDArray[np.int64],
    numbers: NDArray[np.int32],
    pad_id: int,
    align: int,
    ids: NDArray[np.signedinteger],
    labels: NDArray[np.signedinteger],
    positions: NDArray[np.signedinteger],
    documents: NDArray[np.signedinteger],
    attention: NDArray[np.signedinteger],
    weights: NDArray[np.float32],
    ends: NDArray[np.int32],
) -> tuple[int, int, int]:
    """Space out the documents of filled rows, so that each begins at a multiple of `align`.

    Return the row that has no space for that (-1: all have), the number of ends and the longest document with padding.
    Documents of 5 and 3 tokens with `align` 4 end at 5 and 11, and `cu_seqlens` is 0, 8, 12. Padding after a document
    has its next positions, so no model takes it for another document.
    """
    width = ids.shape[1]
    num_ends, longest = min(len(ends), 1), 0
    for row in range(len(addresses)):
        address = addresses[row]
        first_length = (address[A_LENGTHS] - FLOOR) >> 2
        lengths = numbers[first_length : first_length + address[A_DOCUMENTS]]
        end = 0
        for length in lengths:
            end += (int(length) + align - 1) // align * align
            if len(ends) and length:
                ends[num_ends] = row * width + end
                num_ends += 1
            longest = max(longest, (int(length) + align - 1) // align * align)
        if end > width:
            return row, 0, 0
        if len(ends) and end < width:
            ends[num_ends] = (row + 1) * width
            num_ends += 1
        longest = max(longest, width - end)
        ids[row, end:] = pad_id
        if len(labels):
            labels[row, end:] = IGNORED
        if len(weights):
            weights[row, end:] = 0
        if len(documents):
            documents[row, end:] = -1
        if len(attention):
            attention[row, end:] = 0
        if len(positions):
            for position in range(end, width):
                positions[row, position] = position - end
        # From the last document to the first, and each from its last token: nothing is overwritten before it was moved.
        source = int(address[A_FILLED])
        for number in range(len(lengths) - 1, -1, -1):
            length = int(lengths[number])
            aligned = (length + align - 1) // align * align
            end -= aligned
            source -= length
            for token in range(length - 1, -1, -1):
                ids[row, end + token] = ids[row, source + token]
                if len(labels):
                    labels[row, end + token] = labels[row, source + token]
                if len(weights):
                    weights[row, end + token] = weights[row, source + token]
            ids[row, end + length : end + aligned] = pad_id
            if len(labels):
                labels[row, end + length : end + aligned] = IGNORED
            if len(weights):
                weights[row, end + length : end + aligned] = 0
            if len(positions):
                for token in range(aligned):
                    positions[row, end + token] = token
            if len(documents):
                documents[row, end : end + length] = number
                documents[row, end + length : end + aligned] = -1
            if len(attention):
                attention[row, end : end + length] = 1
                attention[row, end + length : end + aligned] = 0
    return -1, num_ends, longest
