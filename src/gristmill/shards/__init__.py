"""The dataset on disk: manifest, canonical writer, reader, verification."""
