"""Commands that look at finished datasets, or write them in another form."""
