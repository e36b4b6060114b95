"""`deduplicate`: signatures of documents or their pieces, candidates of equal keys, and clusters with one survivor.

The step describes; the barrier in `pipeline` calls these kernels on partitions of a corpus larger than memory.
"""
