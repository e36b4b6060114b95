"""What two datasets differ in: shards, documents, tokens, recipes."""
