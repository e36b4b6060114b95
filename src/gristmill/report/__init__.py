"""Looking at datasets: the report, the difference of two datasets, the viewer."""
