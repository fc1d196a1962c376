"""Write results as tables, figures and self-contained HTML pages."""
