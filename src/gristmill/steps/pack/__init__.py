"""`pack`: documents of all lengths into training rows of one."""
