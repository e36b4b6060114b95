"""What a contest is, how its sides are measured, and where the results go."""
