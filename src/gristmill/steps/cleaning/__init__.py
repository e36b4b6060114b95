"""Steps that clean texts without judging them: `normalize`, `pii`, and `url`, which judges only the address."""
