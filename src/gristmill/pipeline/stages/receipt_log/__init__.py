"""The receipts of a run: what is done, on the disk and on a store."""
