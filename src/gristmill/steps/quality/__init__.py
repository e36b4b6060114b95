"""Filters by quality: thresholds over scores (`filters`, `score_filter`), edits of C4, models (`quality_model`).

Thresholds may differ by language (`languages`). The counting is in `text.quality`.
"""
