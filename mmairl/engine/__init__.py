"""How a run is started, wrapped, saved and trusted."""

from mmairl.engine.distributed import DistributedModel
from mmairl.files import AtomicBackend

__all__ = ['AtomicBackend', 'DistributedModel']
