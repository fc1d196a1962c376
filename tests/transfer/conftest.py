"""Detection and segmentation are optional: without mmdet there is nothing here to test."""

from importlib.util import find_spec

from mmairl.transfer.ops import use_torchvision_ops

collect_ignore_glob = [] if find_spec('mmdet') and find_spec('mmseg') else ['test_*.py']
use_torchvision_ops()  # before any test imports mmdet
