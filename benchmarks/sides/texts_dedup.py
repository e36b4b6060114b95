"""Near-duplicates among texts in memory: `python -m benchmarks.sides.texts_dedup SIDE DOCUMENTS [MEGABYTES]`.

The side is run by the environment that has it. CPU time of all threads from texts to the list of documents to remove,
and that list, from which recall is computed. Kernels are compiled before the clock starts.
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

    sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))
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
    "datatrove": datatrove,
}


def measure_recall(texts, pairs, removed, threshold=0.8):
    """Return the share of planted pairs, at least so similar by the exact definition, of which one was removed."""
    num_alike = num_removed = 0
    for one, other in pairs:
        first, second = shingles(texts[one]), shingles(texts[other])
        if len(first & second) >= threshold * len(first | second):
            num_alike += 1
            num_removed += one in removed or other in removed
    return num_removed / max(num_alike, 1)


def main():
    side, path, *limit = sys.argv[1:]
    texts, pairs, num_bytes = [], [], 0
    with Path(path).open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            record = json.loads(line)
            texts.append(record["text"])
            if "copy_of" in record:
                pairs.append((record["copy_of"], number))
            num_bytes += len(texts[-1].encode())
            if limit and num_bytes >= float(limit[0]) * 1e6:
                break
    # The fast ones three times: what a process pays for fresh memory on its first round is no part of the method.
    num_rounds = 3 if side in ("gristmill", "rensa") else 1
    seconds, removed = min(SIDES[side](texts) for _ in range(num_rounds))
    found = {"removed": len(removed), "recall": measure_recall(texts, pairs, set(removed))}
    print(json.dumps({"inner": seconds, "units": num_bytes / 1e6, **found}))


if __name__ == "__main__":
    main()
