"""Training code: it starts, monitors, saves and resumes a run."""
