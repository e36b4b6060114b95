"""The barrier of `decontaminate`: two kinds of tasks between two stages.

search (a unit: which n-grams of benchmarks its documents have) → in the parent: which of them are common in a source →
judge (a unit: which items are found, and where). Each task leaves files and a receipt. The parent holds eight bytes for
each n-gram and source; workers hold the index and one batch.
"""
