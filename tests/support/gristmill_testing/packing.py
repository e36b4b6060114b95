"""Packing as one would explain it: slow, obvious, and the judge of the fast one."""


def pieces_of(lengths, row_length, long_documents):
    """`(document, start, length)` of every piece, in order."""
    pieces = []
    for document, length in enumerate(lengths):
        if length > row_length and long_documents == "drop":
            continue
        end = min(length, row_length) if long_documents == "truncate" else length
        pieces += [(document, start, min(row_length, end - start)) for start in range(0, end, row_length)]
    return pieces


def best_fit_rows(lengths, row_length, long_documents):
    rows = []
    for piece in sorted(pieces_of(lengths, row_length, long_documents), key=lambda piece: -piece[2]):
        free = [row_length - sum(length for _, _, length in row) for row in rows]
        fitting = [space for space in free if space >= piece[2]]
        if fitting:
            # of rows with equally little space, the one that came to have it last
            candidates = [row for row, space in zip(rows, free, strict=True) if space == min(fitting)]
            row = candidates[-1]
            rows.remove(row)
            rows.append([*row, piece])
        else:
            rows.append([piece])
    return sorted(sorted(row) for row in rows)


def concat_rows(lengths, row_length, long_documents):
    tokens = [
        (document, start + index)
        for document, start, length in pieces_of(lengths, row_length, long_documents)
        for index in range(length)
    ]
    rows = []
    for place in range(0, len(tokens), row_length):
        row = []
        for document, index in tokens[place : place + row_length]:
            if row and row[-1][0] == document:
                row[-1] = (document, row[-1][1], row[-1][2] + 1)
            else:
                row.append((document, index, 1))
        rows.append(row)
    return rows


def pad_rows(lengths, row_length, long_documents):
    return [[piece] for piece in pieces_of(lengths, row_length, long_documents)]


ROWS = {"best_fit": best_fit_rows, "concat": concat_rows, "pad": pad_rows}
