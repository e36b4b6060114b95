"""Other jobs that run on the engine or make a dataset: export, mix, tokenizer and template checks, the demo."""
