"""Classifiers of whole texts: linear models over hashed words, as fastText has them."""
