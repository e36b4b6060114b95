"""Looking at datasets: the report, the difference of two datasets, the viewer.

`write.py` writes the report: `collect.py` reads samples and measures, `thresholds.py` counts what other thresholds
would keep, and all of it is a `Report` (`model.py`). `page.py` makes the page of its sections (`sections.py`,
`record_sections.py`) with `charts.py` and `markup.py`; nothing from a dataset becomes markup unescaped.
`differences.py` compares two datasets by their `documents.py`. `view/` browses rows in a browser or a terminal, and
`local_server.py` serves pages to one person.
"""
