"""The transfer tasks of the papers (detection, segmentation and depth), and components that mmdet and mmseg lack.

The papers are those whose tables are in configs/studies/_published.

mmdet and mmseg import all ops of mmcv. Missing ops must therefore be replaced before mmdet or mmseg is imported.
"""

from mmairl.data.mmcv_ops import use_torchvision_ops

use_torchvision_ops()
