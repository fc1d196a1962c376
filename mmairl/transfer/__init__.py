"""Components for the transfer tables that mmdet and mmseg lack. The configs that name a module import it.

mmdet and mmseg import all of mmcv's ops at once, so the replacement of missing ops has to be in place before.
"""

from mmairl.data.mmcv_ops import use_torchvision_ops

use_torchvision_ops()
