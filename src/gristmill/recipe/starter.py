"""The recipe that `gristmill init` creates. It runs unchanged, and its comments show further options."""

from __future__ import annotations

STARTER_RECIPE = """\
# A recipe: where records come from, what happens to them, where they go.
#   gristmill plan recipe.yaml     check everything, do nothing
#   gristmill run recipe.yaml      do it; the same command resumes after a crash
# Paths are relative to this file. Any value can be changed for one run: --set steps.0.length.min_chars=50

output: out                       # a new folder
seed: 0                           # every random choice depends on it

sources:
  sample:                         # a name for these files; add as many sources as you like
    read: sample.jsonl            # also folders, "data/**/*.jsonl.zst", "part-{0000..0099}.parquet", s3://…, lists
    text: text                    # the field that holds the text; "payload.body" for one inside another
    # columns: [url, date]        # only these; without it documents keep all their columns
    # steps: [sample: {fraction: 0.1}]     # only for this source, before the common steps

steps:
  - length: {min_chars: 20}       # drops shorter documents, counted as too_short
  # - filter: {call: functions.py:keep}    # your own function: gets a record as a dict, returns True or False
  # - map: {call: functions.py:clean}      # gets a dict, returns a dict
  # - limit: {max_records: 1000}           # the first 1000 of each source
  # - deduplicate: {threshold: 0.8}        # one of each set of copies, also of nearly equal ones
  - split: {validation: 0.1}      # by the hash of the text, so copies stay on one side
  - write: {format: jsonl}        # or parquet, arrow, webdataset

max_quarantine: 0.01              # fail if more than 1 % of a source's records cannot be used
"""

STARTER_DATA = "".join(
    f'{{"text": "Document {number}: {sentence}", "url": "https://example.org/{number}"}}\n'
    for number, sentence in enumerate(
        [
            "Wheat goes in at the top of the mill.",
            "The stones turn, and nothing is lost between them.",
            "Short.",
            "What comes out is weighed against what went in.",
            "The miller keeps a book of every sack.",
            "Flour of the same wheat is the same flour, however many hands helped.",
        ]
        * 5
    )
)
