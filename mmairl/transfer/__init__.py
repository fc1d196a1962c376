"""The transfer tasks (detection, segmentation and depth), and components that mmdet and mmseg lack."""
