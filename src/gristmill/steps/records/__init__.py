"""Support for steps that work on single records or columns. No step of a recipe is in here."""
