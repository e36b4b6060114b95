"""The viewer: a local web page to browse datasets and raw files."""
