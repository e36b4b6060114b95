"""Chats: the shapes of their records, how a template renders them, and which of the text the assistant wrote.

`shapes` reads a record, `templates` finds its template, `example_maker` makes examples of it; `answers`, `turns` and
`skeletons` find the trained ranges. `record_plan` and `tracing` do the same faster for chats of a known form.
"""
