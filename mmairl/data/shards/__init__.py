"""Images in shards, local or remote: tar archives, Parquet and Arrow files."""
