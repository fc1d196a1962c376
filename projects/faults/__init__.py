"""Random faults: killed runs, full disks, damaged files, and what comes of them. `python -m projects.faults` runs them."""
