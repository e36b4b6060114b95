"""Two real ranks train and stop, one resumes: the Trainer of transformers, and a loop with accelerate."""

from pathlib import Path

import gristmill_testing
import pytest
from gristmill_testing.ranks import run_ranks

from gristmill.stream import Stream

TRAIN = """
import json, sys
sys.path.insert(0, sys.argv[3])
from gristmill_testing.accelerate_training import train_with_accelerate
from gristmill_testing.hf_training import train_on_stream
from gristmill.stream import Stream

def stream():
    return Stream(sys.argv[1], seed=7, epochs=1)

folder = sys.argv[2]
rows, trainer = train_on_stream(folder, stream(), batch_size=4, saves=2, stop_after=3, num_train_epochs=1)
assert trainer.args.world_size == 2
run = train_with_accelerate(stream(), batch_size=4, stop_after=2, save=folder + "/accelerate")
print(json.dumps([rows, run.rows]))
"""


@pytest.mark.slow
def test_two_ranks_become_one(packed, oracle, tmp_path):
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    from gristmill_testing.accelerate_training import train_with_accelerate
    from gristmill_testing.hf_training import train_on_stream

    ranks = run_ranks(TRAIN, packed, tmp_path, Path(gristmill_testing.__path__[0]).parent)
    assert [rank.returncode for rank in ranks] == [0, 0], ranks
    for number, num_steps in enumerate((3, 2)):
        first, second = (rank.output[number] for rank in ranks)
        both = [row for step in range(num_steps) for rows in (first, second) for row in rows[4 * step : 4 * step + 4]]
        assert both == oracle[: 8 * num_steps]
    stream = Stream(packed, seed=7, epochs=1)
    rest, _ = train_on_stream(tmp_path, stream, batch_size=6, num_train_epochs=1, resume=True)
    assert rest == oracle[16:53]  # saved after the second step
    run = train_with_accelerate(Stream(packed, seed=7, epochs=1), batch_size=5, load=tmp_path / "accelerate")
    assert run.rows == oracle[16:53]
