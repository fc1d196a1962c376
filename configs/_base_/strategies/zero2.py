# As ZeRO-1, with gradients that are divided after every batch, where batches are accumulated.
strategy = dict(type='ZeroStrategy', zero_optimization=dict(stage=2))
