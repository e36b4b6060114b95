"""Commands on recipes and runs: write a recipe, plan, run and measure it, watch a run, clean up after it."""
