"""Files of others as datasets to stream: WebDataset tars, Parquet files and folders of `datasets`."""
