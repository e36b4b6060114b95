"""What this machine gives a job: its cores, its memory, and which worker may use which."""
