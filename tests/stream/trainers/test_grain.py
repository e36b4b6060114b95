"""`GrainSource` in real pipelines of Grain: the stream's order, slices for ranks, batches and checkpoints."""

import pickle

import pytest
from gristmill_testing.token_datasets import write_tokens

from gristmill.core.errors import EndlessStreamError, OutOfRangeError, UsageError
from gristmill.stream import Collate, Stream
from gristmill.stream.trainers.grain import GrainSource

grain = pytest.importorskip("grain")
pytestmark = pytest.mark.filterwarnings("ignore")


def make_source(packed, **options):
    return GrainSource(
        Stream(packed, seed=7, epochs=2, collate=Collate(fields=("input_ids", "position_ids")), **options)
    )


def test_a_pipeline_reads_the_order_of_the_stream(packed, oracle):
    source = make_source(packed)
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    ranks = [grain.MapDataset.source(source)[rank::2].to_iter_dataset().batch(4) for rank in range(2)]
    found = [[row for batch in rank for row in batch["input_ids"].tolist()] for rank in ranks]
    assert found[0] == oracle[:106:2]
    assert found[1] == oracle[1:106:2]


@pytest.mark.full
def test_a_checkpoint_of_grain_resumes(packed, oracle):
    def make_batches():
        return iter(grain.MapDataset.source(make_source(packed)).to_iter_dataset().batch(5))

    batches = make_batches()
    for _ in range(3):
        next(batches)
    state = batches.get_state()
    resumed = make_batches()
    resumed.set_state(state)
    assert [row for batch in resumed for row in batch["input_ids"].tolist()] == oracle[15:106]


@pytest.mark.full
def test_rows_by_number(packed, tmp_path, oracle):
    source = pickle.loads(pickle.dumps(make_source(packed)))
    assert source[3]["input_ids"].tolist() == oracle[3]
    assert source[-1]["input_ids"].tolist() == oracle[105]
    assert repr(source) == repr(make_source(packed)) != repr(make_source(packed, shuffle=False))
    with pytest.raises(OutOfRangeError):
        source[106]
    ragged = write_tokens(tmp_path / "out", {("train", "web"): [[[1, 2, 3], [4]]]})
    rows = GrainSource(Stream(ragged, epochs=1, shuffle=False))
    assert [rows[number]["input_ids"].tolist() for number in range(2)] == [[1, 2, 3], [4]]
    with pytest.raises(EndlessStreamError):
        GrainSource(Stream(packed))
    with pytest.raises(UsageError, match="cu_seqlens"):
        GrainSource(Stream(packed, epochs=1, collate=Collate(fields=("input_ids", "cu_seqlens"))))
