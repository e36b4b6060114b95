"""Words whose ids are remembered, and the bytes behind ids."""
