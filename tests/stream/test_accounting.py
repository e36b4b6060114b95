"""Live numbers against plan."""

import pytest
from gristmill_testing.streams import write_packed

from gristmill.stream import Stream


def test_of_a_mixture_with_phases(packed):
    phases = [(0, {"web": 1, "code": 0}), (20, {"web": 0.5, "code": 0.5})]
    stream = Stream(packed, mixture=phases, rows=60)
    for _ in stream.batches(5, 1, 2):
        pass
    report = stream.accounting.report()
    web, code = report.sources
    assert (report.row, report.rows) == (60, 30)  # all ranks' rows, and this one's
    assert web.rows + code.rows == 30
    assert web.planned_share == pytest.approx(40 / 60)
    assert code.planned_share == pytest.approx(20 / 60)
    assert web.epochs == pytest.approx(40 / 30)
    assert code.epochs == pytest.approx(20 / 23)
    assert report.tokens == web.tokens + code.tokens
    assert report.rows_per_second > 0


def test_without_weights_shares_are_those_of_rows(packed):
    stream = Stream(packed, epochs=1)
    tokens = sum(int(batch.tokens.sum()) for batch in stream.batches(8))
    report = stream.accounting.report()
    web, code = report.sources
    assert (web.rows, code.rows) == (30, 23)
    assert web.planned_share == pytest.approx(30 / 53)
    assert web.epochs == code.epochs == 1
    assert report.tokens == tokens
    assert report.padding_share == pytest.approx(1 - tokens / (56 * 12))  # rows that only fill up are padding


def test_counts_start_again_with_a_state(packed):
    stream = Stream(packed)
    state = stream.state_dict(row=106)
    next(stream.batches(4))
    stream.load_state_dict(state)
    next(stream.batches(4))
    values = stream.accounting.as_dict("train/")
    assert values["train/rows"] == 4
    assert values["train/row"] == 110
    assert values["train/web/epochs"] == pytest.approx(110 / 53)
    assert all(isinstance(value, float) for value in values.values())


def test_before_the_first_batch(tmp_path):
    stream = Stream(write_packed(tmp_path / "out", {"web": [3]}))
    assert stream.accounting.as_dict()["data/rows_per_second"] == 0
    assert stream.accounting.log_line().startswith("row 0: web 0.0%")


@pytest.mark.parametrize(("num_workers", "method"), [(0, None), (2, "fork"), (2, "spawn")])
def test_a_data_loader_is_counted(packed, num_workers, method):
    data = pytest.importorskip("torch.utils.data")
    from gristmill.stream.torch import TorchDataset

    stream = Stream(packed, epochs=1)
    dataset = TorchDataset(stream, 8, rank=0, world_size=1)
    loader = data.DataLoader(dataset, batch_size=None, num_workers=num_workers, multiprocessing_context=method)
    tokens = sum(int(batch.tokens.sum()) for batch in loader)
    report = stream.accounting.report()
    assert (report.row, report.rows, report.tokens) == (53, 53, tokens)
    assert [source.rows for source in report.sources] == [30, 23]
    assert report.padding_share == pytest.approx(1 - tokens / (56 * 12))
    assert report.wait_seconds is None
    assert report.rows_per_second > 0
    assert "waited" not in stream.accounting.log_line()
    assert "data/wait_seconds" not in stream.accounting.as_dict()
    stream.accounting.restart(0)
    assert stream.accounting.report().rows == 0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_rows_of_a_sampler_are_counted(packed, num_workers):
    data = pytest.importorskip("torch.utils.data")
    from gristmill.stream.torch import TorchRows

    stream = Stream(packed, epochs=1)
    method = "fork" if num_workers else None
    loader = data.DataLoader(
        TorchRows(stream), batch_size=4, shuffle=True, num_workers=num_workers, multiprocessing_context=method
    )
    for _ in loader:
        pass
    report = stream.accounting.report()
    assert (report.row, report.rows) == (53, 53)
    assert [source.rows for source in report.sources] == [30, 23]
    assert report.tokens == int(Stream(packed).rows(0, 53).tokens.sum())
