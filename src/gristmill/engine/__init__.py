"""Runs work in parallel: one scheduler over thin backends. It knows items and tasks, not datasets.

`parallel_map` and `tasks` are the doors. Both make a `parallel_run`, which runs the `scheduler`: it takes chunks from
the `item_queue`, gives them to the `job_workers` that it borrows from a `worker_pool`, and hands what goes wrong to
`failures`, whose `failure_report` is what a caller sees. `pool_sizer` and `machine` fit the workers to cores and
memory, `observer` and `progress` tell what happens. `backend` is the interface to places where work runs (`backends`,
with `worker_process` and `ray_workers`), and `worker` is the code of a worker.
"""
