"""`pack`: documents of all lengths, packed into training rows of one length."""
