"""Questions about a stream: its speed, its resume, its balance, what it will read."""
