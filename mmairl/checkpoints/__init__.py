"""Read a backbone's weights from checkpoints of many projects, and write them in the formats of others."""
