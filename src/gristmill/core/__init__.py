"""What every layer shares: types, protocols, errors, seeds, checks of numbers and names. No I/O."""
