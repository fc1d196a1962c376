"""How often a study's verdicts are wrong, by simulation: python -m projects.verdicts."""
