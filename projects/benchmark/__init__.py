"""Speed and memory, ours beside a peer's in one process: suites of cases, timed in turn, printed as ratios."""
