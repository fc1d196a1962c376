"""Ask for labels one at a time until a test decides which of several checkpoints is best."""
