"""Batches for PyTorch: a loader of its own, and datasets for the loaders that there are."""

from gristmill.stream.torch.dataset import TorchDataset
from gristmill.stream.torch.loader import TorchLoader
from gristmill.stream.torch.rows import TorchRows

__all__ = ["TorchDataset", "TorchLoader", "TorchRows"]
