"""Commands on finished datasets: look at them, compare, explain, tune, verify, export and mix them."""
