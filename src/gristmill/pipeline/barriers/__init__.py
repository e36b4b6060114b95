"""What happens between two stages: one module for each global step."""
