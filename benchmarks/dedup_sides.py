"""One side, run by an interpreter that has it: `dedup_sides.py SIDE DOCUMENTS.jsonl` prints what it removes.

Time is CPU time of all threads together: other programs on the machine do not count.
"""

import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from time import process_time


def gristmill(texts):
    import pyarrow as pa

    from gristmill.steps import Deduplicate

    sys.path.append(str(Path(__file__).parents[1] / "tests/support"))
    from gristmill_testing.in_memory_duplicates import find_duplicates

    step = Deduplicate()
    find_duplicates(step, pa.array(texts[:200] + [f"{text} more" for text in texts[:200]], pa.large_string()))
    start = process_time()
    found, _ = find_duplicates(step, pa.array(texts, pa.large_string()))
    return process_time() - start, found.documents.tolist()


def shingles(text):
    """Five words in a row, as in most tutorials."""
    words = re.findall(r"\w+", text.lower())
    return {" ".join(words[first : first + 5]) for first in range(max(len(words) - 4, 1))}


def datasketch(texts, *, batch=False):
    from datasketch import MinHash, MinHashLSH

    start = process_time()
    lsh = MinHashLSH(threshold=0.8, num_perm=128)
    removed = []
    for number, text in enumerate(texts):
        minhash = MinHash(num_perm=128)
        if batch:
            minhash.update_batch([shingle.encode() for shingle in shingles(text)])
        else:
            for shingle in shingles(text):
                minhash.update(shingle.encode("utf8"))
        if lsh.query(minhash):
            removed.append(number)
        else:
            lsh.insert(number, minhash)
    return process_time() - start, removed


def rensa(texts):
    """Its bulk interface, fed with the words of each text as a Python list; 16 bands of 8, as in its documentation."""
    from rensa import RMinHash, RMinHashLSH

    start = process_time()
    matrix = RMinHash.digest_matrix_from_token_sets([text.split() for text in texts], 128, 42)
    flags = RMinHashLSH(0.8, 128, 16).query_duplicate_flags_matrix_one_shot(matrix)
    return process_time() - start, first_of_each(flags)


def rensa_hashes(texts):
    """Like `rensa`, from hashes of shingles that exist already: its fastest way, without cutting words and shingles."""
    import numpy as np
    from rensa import RMinHash, RMinHashLSH

    hashed = [np.fromiter((hash(shingle) & (2**64 - 1) for shingle in shingles(text)), np.uint64) for text in texts]
    offsets = np.cumsum([0, *map(len, hashed)]).astype(np.uint64)
    flat = np.concatenate(hashed)
    start = process_time()
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(flat, offsets, 128, 42)
    flags = RMinHashLSH(0.8, 128, 16).query_duplicate_flags_matrix_one_shot(matrix)
    return process_time() - start, first_of_each(flags)


def first_of_each(flags):
    return [number for number, flag in enumerate(flags) if flag]


def datatrove(texts):
    import numpy as np
    from datatrove.data import Document
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupSignature
    from datatrove.pipeline.dedup.minhash import MinhashConfig
    from loguru import logger

    logger.remove()
    folder = tempfile.mkdtemp()
    config = MinhashConfig()
    documents = [Document(text=text, id=str(number)) for number, text in enumerate(texts)]

    def read(data, rank=0, world_size=1):
        yield from documents

    def stage(name, pipeline, tasks=1):
        LocalPipelineExecutor(pipeline=pipeline, tasks=tasks, workers=1, logging_dir=f"{folder}/logs/{name}").run()

    MinhashDedupSignature(f"{folder}/warm", config).get_signature(
        MinhashDedupSignature(f"{folder}/warm", config).get_shingles("a b c d e f g")
    )
    start = process_time()
    stage("signatures", [read, MinhashDedupSignature(f"{folder}/signatures", config)])
    stage(
        "buckets", [MinhashDedupBuckets(f"{folder}/signatures", f"{folder}/buckets", config=config)], config.num_buckets
    )
    stage("cluster", [MinhashDedupCluster(f"{folder}/buckets", f"{folder}/remove", config=config)])
    seconds = process_time() - start
    try:
        removed = np.fromfile(f"{folder}/remove/000000.remove", dtype="<u4").tolist()
    except FileNotFoundError:
        removed = []
    shutil.rmtree(folder)
    return seconds, removed


SIDES = {
    "gristmill": gristmill,
    "datasketch": datasketch,
    "datasketch-batch": lambda texts: datasketch(texts, batch=True),
    "rensa": rensa,
    "rensa-hashes": rensa_hashes,
    "datatrove": datatrove,
}


if __name__ == "__main__":
    with Path(sys.argv[2]).open(encoding="utf-8") as lines:
        given = [json.loads(line)["text"] for line in lines]
    # The fast ones three times: what a process pays for fresh memory on its first round is no part of the method.
    num_rounds = 3 if sys.argv[1] in ("gristmill", "rensa", "rensa-hashes") else 1
    seconds, removed = min(SIDES[sys.argv[1]](given) for _ in range(num_rounds))
    num_bytes = sum(len(text.encode()) for text in given)
    print(json.dumps({"mb_s": num_bytes / seconds / 1e6, "seconds": seconds, "removed": removed}))
