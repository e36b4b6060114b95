"""Mail for Gristmill: the reader `mbox`, the steps `redact` and `balance`, the export format `lines`."""
