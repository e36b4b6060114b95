"""Filters by quality: tables of thresholds over scores, and the edits of C4."""
