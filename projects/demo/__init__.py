"""The demo of tools/demo.py: what a network learns without labels, on one page."""
