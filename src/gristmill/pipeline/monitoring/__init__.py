"""Looking at a run while it works: its status as data, what slows it, and views of it for people and programs."""
