"""What people read: a table on the terminal, the README's table and picture, and the page about performance."""
