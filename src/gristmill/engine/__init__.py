"""Runs work in parallel: one scheduler over thin backends. It knows items and tasks, not datasets."""
