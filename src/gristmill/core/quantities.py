"""Numbers in the words of a message: sizes, counts of things, shares, durations."""

from __future__ import annotations

import unicodedata


def format_bytes(num_bytes: int) -> str:
    """Format a number of bytes in decimal units.

    >>> format_bytes(512), format_bytes(65_000), format_bytes(3_210_000_000)
    ('512 bytes', '65.0 kB', '3.2 GB')
    """
    if num_bytes < 1000:
        return f"{num_bytes} bytes"
    # 999.95, not 1000: with one decimal 999,960 bytes would become "1,000.0 kB".
    power = next((power for power in range(1, 5) if num_bytes / 1000**power < 999.95), 5)
    return f"{num_bytes / 1000**power:,.1f} {('kB', 'MB', 'GB', 'TB', 'PB')[power - 1]}"


def format_rough(number: float) -> str:
    """Format an estimate in at most six characters.

    >>> [format_rough(number) for number in (0, 950, 12_345, 3_830_802, 999_960, 2.5e12)]
    ['0', '950', '12.3 k', '3.8 M', '1.0 M', '2.5 T']
    """
    power = next((power for power in range(4) if number / 1000**power < 999.95), 4)
    return f"{number / 1000**power:.1f} {' kMGT'[power]}" if power else f"{number:.0f}"


def count_cells(text: str) -> int:
    """Count the cells of a text on a terminal: wide characters take two, combining ones none.

    >>> count_cells("花间集"), count_cells("abc"), count_cells("e\u0301")
    (6, 3, 1)
    """
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def format_count(number: int, word: str) -> str:
    """Format a number of things, with the word in its singular or plural.

    >>> format_count(1, "file"), format_count(12_000, "file")
    ('1 file', '12,000 files')
    """
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def format_share(part: float, whole: float) -> str:
    """Format a share in percent. Only nothing is 0.0% and only everything 100.0%.

    >>> format_share(1, 3), format_share(2, 2), format_share(99_998, 100_000), format_share(2, 100_000)
    ('33.3%', '100.0%', '>99.9%', '<0.1%')
    """
    share = part / whole if whole else 0.0
    if 0 < share < 0.0005:
        return "<0.1%"
    return ">99.9%" if 0.9995 <= share < 1 else f"{share:.1%}"


def format_duration(seconds: float) -> str:
    """Format a time in at most two units.

    >>> format_duration(4.2), format_duration(73), format_duration(7500)
    ('4 s', '1 min 13 s', '2 h 5 min')
    """
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60} s"
    return f"{total // 3600} h {total % 3600 // 60} min"
