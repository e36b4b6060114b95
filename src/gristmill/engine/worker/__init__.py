"""The code of a worker process and its messages to the parent. Imports little: a worker starts in about 20 ms.

`main` receives frames (`wire`) and hands them to the runner of `job`, which loops over the items of a `chunk`.
`pickling` turns objects and exceptions into bytes; what a worker does is noted in its `recorder`, readable after its
death.
"""
