"""Batches for PyTorch: `TorchLoader`, which makes them in threads, and datasets for the loaders of other libraries.

`dataset` gives whole batches to a DataLoader, whose workers send them through `worker_ring`; `rows` gives single rows.
`ranks` finds the rank and refuses libraries that would shard batches again. `model_borders` checks whether a model
separates the documents of a row.
"""

from gristmill.stream.torch.dataset import TorchDataset
from gristmill.stream.torch.loader import TorchLoader
from gristmill.stream.torch.rows import TorchRows

__all__ = ["TorchDataset", "TorchLoader", "TorchRows"]
