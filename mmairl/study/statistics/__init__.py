"""The statistics of studies: numbers in, numbers and verdicts out; nothing here runs a run."""
