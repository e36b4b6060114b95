"""Sessions of agents as records: the logs of coding agents, and the rows of trajectory datasets.

`session_files` cuts files into sessions and is the format's module. `events` reads the lines of a log, one class for
each program that writes them; `messages` reads what they say, in any API's shapes; `sequences` puts the events of a
session into the order in which a model has seen them.
"""
