"""Readers of files whose records are text: JSON lines and arrays, CSV, plain text.

`delimited_file` cuts files into raw cells of whole records (`cell_cutter` finds the borders; `csv_rows` and
`json_elements` scan where quotes decide them). `json_fields` decodes the needed fields, also those of CSV rows.
"""
