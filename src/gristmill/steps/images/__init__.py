"""The step `images`, and decoded images for users' functions."""
