"""The viewer: browses datasets and raw files in a browser, a terminal or a notebook.

`rows.py` says what a collection of rows is; `dataset_rows.py`, `line_rows.py` (dropped and quarantined records),
`raw_files.py` and `difference_rows.py` are the collections. `page_requests.py` answers what a page asks, with
`search.py` and `describe.py`; `server.py` and `terminal.py` show the answers.
"""
