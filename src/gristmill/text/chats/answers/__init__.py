"""Where in a rendered conversation the answers of the assistant are: found to the character, for loss masks."""
