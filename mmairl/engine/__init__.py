"""How a run is started, wrapped, saved and trusted."""

from mmairl.files import AtomicBackend
from mmairl.engine.distributed import DistributedModel

__all__ = ['AtomicBackend', 'DistributedModel']
