"""Worker processes as their parent sees them: how they are started, spoken to, killed and reaped."""
