"""Tokenizer engines, chat templates and shared text kernels."""
