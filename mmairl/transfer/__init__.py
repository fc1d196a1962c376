"""The transfer tasks of the papers, and components for them that mmdet and mmseg lack.

mmdet and mmseg import all ops of mmcv, so missing ops must be replaced before.
"""

from mmairl.data.mmcv_ops import use_torchvision_ops

use_torchvision_ops()
