# The batch size for evaluation on ImageNet. Images are prepared as in the training of the checkpoint.
evaluation = dict(batch_size=256)
