"""What mmdet and mmseg lack for the transfer tables; each module is imported by the configs that name it."""
