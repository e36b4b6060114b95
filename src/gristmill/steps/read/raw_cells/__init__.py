"""Files of bytes, cut into cells and records."""
