"""Support for steps that look at one record or column at a time."""
