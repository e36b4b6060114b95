"""How files of bytes are cut into cells and records."""
