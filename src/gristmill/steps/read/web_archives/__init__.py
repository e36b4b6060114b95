"""Web archives: WARC files of pages as they were fetched, and WET files of their texts."""
