"""Images in shards: tar archives, Parquet and Arrow files with many images each, on local disks or remote storage."""
