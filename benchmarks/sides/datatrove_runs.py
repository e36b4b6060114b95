"""What datatrove does for the same work: `python -m benchmarks.sides.datatrove_runs WORK INPUT_FOLDER OUTPUT [FILE]`.

WORK is `tokenize` (FILE: tokenizer.json), `length`, `gopher`, or `recipe` (FILEs: tokenizer.json, lid.176.ftz). Two
tasks on two workers, forked, which is its fastest way to start them.
"""

import sys

TASKS = WORKERS = 2


def run(name, output, pipeline, tasks=TASKS):
    from datatrove.executor import LocalPipelineExecutor

    logs = f"{output}/logs/{name}"
    LocalPipelineExecutor(pipeline=pipeline, tasks=tasks, workers=WORKERS, logging_dir=logs, start_method="fork").run()


def is_long(document):
    return len(document.text) >= 200


def tokenize(folder, output, tokenizer):
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    tokens = DocumentTokenizer(f"{output}/tokens", tokenizer, eos_token="<|endoftext|>")
    run("tokenize", output, [JsonlReader(folder), tokens])


def length(folder, output):
    from datatrove.pipeline.filters import LambdaFilter
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter

    writer = JsonlWriter(f"{output}/data", output_filename="${rank}.jsonl.zst", compression="zstd")
    run("length", output, [JsonlReader(folder, glob_pattern="*.jsonl.zst"), LambdaFilter(is_long), writer])


def gopher(folder, output):
    from datatrove.pipeline.filters import GopherQualityFilter, GopherRepetitionFilter
    from datatrove.pipeline.readers import JsonlReader

    run("gopher", output, [JsonlReader(folder), GopherQualityFilter(), GopherRepetitionFilter(), write_to(output)])


def write_to(output):
    from datatrove.pipeline.writers import JsonlWriter

    return JsonlWriter(f"{output}/data", output_filename="${rank}.jsonl", compression=None)


def recipe(folder, output, tokenizer, language_model):
    """Language, both gopher filters and fineweb's, near-duplicates in four stages, tokens."""
    import datatrove.utils.lid
    from datatrove.pipeline.dedup import (
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupFilter,
        MinhashDedupSignature,
    )
    from datatrove.pipeline.dedup.minhash import MinhashConfig
    from datatrove.pipeline.filters import (
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
        LanguageFilter,
    )
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    # The model that Gristmill uses, too; datatrove would download a larger one.
    datatrove.utils.lid.cached_asset_path_or_download = lambda *_, **__: language_model
    config = MinhashConfig()
    filters = [LanguageFilter(["en"]), GopherQualityFilter(), GopherRepetitionFilter(), FineWebQualityFilter()]
    run("filter", output, [JsonlReader(folder), *filters, write_to(output)])
    kept = f"{output}/data"
    signatures, buckets, remove = (f"{output}/{name}" for name in ("signatures", "buckets", "remove"))
    run("sign", output, [JsonlReader(kept), MinhashDedupSignature(signatures, config)])
    run("buckets", output, [MinhashDedupBuckets(signatures, buckets, config=config)], config.num_buckets)
    run("cluster", output, [MinhashDedupCluster(buckets, remove, config=config)], 1)
    tokens = DocumentTokenizer(f"{output}/tokens", tokenizer, eos_token="<|endoftext|>")
    run("tokens", output, [JsonlReader(kept), MinhashDedupFilter(remove), tokens])


def main():
    from loguru import logger

    logger.remove()
    work, *words = sys.argv[1:]
    {"tokenize": tokenize, "length": length, "gopher": gopher, "recipe": recipe}[work](*words)


if __name__ == "__main__":
    main()
