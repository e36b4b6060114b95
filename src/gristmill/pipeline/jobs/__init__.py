"""Other jobs that run on the engine or make a dataset.

`export.py` (with `export_shards.py`) writes a dataset in another format, `mix_datasets.py` (with `mix_inputs.py` and
`mix_lane.py`) makes one of several, `sign_dataset.py` keeps signatures for `against`. `tokenizer_jobs.py` and
`classifier_job.py` train and try models, and `demo.py` makes a first recipe. `job_pool.py` has their workers.
"""
