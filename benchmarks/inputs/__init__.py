"""The inputs of contests: written once into the working folder, from seeds, the same bytes each time."""
