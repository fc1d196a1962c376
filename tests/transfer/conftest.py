"""Detection and segmentation are optional: without mmdet there is nothing here to test."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec('mmdet') and find_spec('mmseg') else ['test_*.py']
