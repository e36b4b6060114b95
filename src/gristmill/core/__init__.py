"""The words every layer shares: types, protocols, errors, seeds, counters. No I/O."""
