"""What a job tells while it runs: numbers for a person, events for a log."""
