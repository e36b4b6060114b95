"""Commands: words in, words out, no logic of their own."""
