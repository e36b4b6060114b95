"""The backends, one file each. They carry chunks to workers and report events; the scheduler decides.

None knows another one, which a contract checks. What two of them need is in `worker_process` and `worker`.
"""
