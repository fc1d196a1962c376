"""The statistics of studies: intervals, verdicts and effects, computed from the scores in study.json."""
