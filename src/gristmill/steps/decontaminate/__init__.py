"""`decontaminate`: benchmark files as items, texts as they read (two modules of kernels), and the index of n-grams.

The step describes; the barrier in `pipeline` judges the hits of all documents.
"""
