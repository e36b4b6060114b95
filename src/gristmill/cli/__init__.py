"""The command line: the one room that reads words and prints results. Importing `main` imports no command.

Each command parses its words, calls one function of the library and prints what that returns, as text or as one JSON
object. `running` holds the commands on recipes and runs, `datasets` those on finished datasets, `training` those on
streams, tokenizers and templates. `options` are options that several share, `printing` errors and values, `tables` and
`summary` the books, `plots` pictures. Progress of long work is shown by `engine.progress` and `pipeline.monitoring`,
because Python callers see it, too.
"""
