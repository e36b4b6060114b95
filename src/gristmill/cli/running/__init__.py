"""Commands that make datasets: run and what belongs to it, plan, bench, status, clean, demo, init, dedup."""
