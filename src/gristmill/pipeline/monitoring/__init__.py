"""Looking at a run while it works.

`status_maker.py` measures a job into a `RunStatus` (`run_status.py`), `views.py` and `web_view.py` show it, and
`replay.py` reads one from the log of events of a run that has ended.
"""
