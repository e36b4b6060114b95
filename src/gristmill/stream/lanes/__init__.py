"""What a stream reads, and in which order. Arithmetic: no row is read here.

`arguments` checks what the user passed. `sources` opens the datasets and arranges their rows in lanes. Third-party
files become datasets in `foreign_tars` and `foreign_tables`, whose blocks `table_blocks` converts. `mixing` turns
weights into a mixture and finds the end, `row_order` maps row p to a stored row, `balance` deals the rows of a step to
ranks, and `position` knows the next row and its state.
"""
