"""Ask for labels one at a time until one of several checkpoints is shown to be best."""
