"""Tables, figures and self-contained pages of results."""
