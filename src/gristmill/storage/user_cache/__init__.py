"""What is kept in the user's cache folder: blocks and copies of remote files, plans."""
