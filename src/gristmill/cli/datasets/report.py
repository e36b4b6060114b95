"""`gristmill report`: make the report of a dataset again."""

from contextlib import nullcontext
from pathlib import Path

import click

from gristmill.cli.options import dataset_argument, json_option
from gristmill.cli.tables import print_lines
from gristmill.core.quantities import format_bytes, format_count
from gristmill.core.recipe import DEFAULT_SAMPLES, MAX_SAMPLES
from gristmill.pipeline.publishing.locked_output import lock_output
from gristmill.report.write import load_report, write_report
from gristmill.shards.dataset import Dataset, open_dataset
from gristmill.shards.report import REPORT, REPORT_PAGE, encode_report


@click.command(epilog="Example: gristmill report out --samples 0")
@dataset_argument
@click.option(
    "--samples",
    type=click.IntRange(min=0, max=MAX_SAMPLES),
    help="Records of each kind to show; 0: none. Default: as in the report that is there; none if it cannot be read.",
)
@json_option
def command(out: str, samples: int | None, *, as_json: bool) -> None:
    """Write report.html and report.json of the dataset in OUT.

    Every run writes them, too. The page needs no network and no other file. It says how many records it holds.
    """
    folder = open_dataset(out).folder
    # A run that is ending writes the report, too, with its times: one after the other.
    with lock_output(folder) if isinstance(folder, Path) else nullcontext():
        _write_again(open_dataset(folder), samples, as_json=as_json)


def _write_again(dataset: Dataset, samples: int | None, *, as_json: bool) -> None:
    old = load_report(dataset.folder)
    wanted = old.samples.wanted if old is not None and old.samples is not None else None
    # What nobody asked for is not shown: the recipe may have forbidden it with `samples: 0`.
    is_unknown = samples is None and wanted is None
    if samples is None:
        samples = wanted or 0
    run = old.run if old is not None and old.dataset_hash == dataset.manifest.dataset_hash else None
    report = write_report(dataset.folder, dataset.manifest, "report", samples=samples, run=run, reads_store=True)
    if as_json:
        click.echo(encode_report(report).decode(), nl=False)
        return
    num_records = report.samples.num_records if report.samples is not None else 0
    size = format_bytes(report.page.bytes) if report.page is not None else ""
    print_lines(f"{dataset.folder / REPORT_PAGE}: {size}, holds {format_count(num_records, 'record')} of the data")
    print_lines(f"{dataset.folder / REPORT}: all numbers")
    if is_unknown:
        print_lines(
            "no records are shown: no earlier report says how many are wanted. "
            f"For up to {DEFAULT_SAMPLES} of each kind: --samples {DEFAULT_SAMPLES}"
        )
