"""The transfer tasks (detection, segmentation and depth), and components that mmdet and mmseg lack.

mmdet and mmseg import all ops of mmcv. Missing ops must therefore be replaced before mmdet or mmseg is imported.
"""

from mmairl.transfer.mmcv_ops import use_torchvision_ops

use_torchvision_ops()
