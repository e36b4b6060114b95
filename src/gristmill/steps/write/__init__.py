"""Writing documents: JSONL, Parquet, Arrow and WebDataset shards, as blocks that can be joined in any grouping."""

from gristmill.shards.arrow_stream import origins_block, origins_footer, origins_header
from gristmill.steps.write.encoder import Encoder, encode_whole, needs_sequence, open_encoder
from gristmill.steps.write.write import Write

__all__ = [
    "Encoder",
    "Write",
    "encode_whole",
    "needs_sequence",
    "open_encoder",
    "origins_block",
    "origins_footer",
    "origins_header",
]
