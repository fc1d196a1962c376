"""Images in shards, near or far: WebDataset, Parquet, Arrow and our own archives."""
