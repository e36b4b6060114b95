"""The barrier of `EveryNth`: the number of a unit's first record depends on all units before it."""

from dataclasses import dataclass, replace

from gristmill.pipeline.barriers.base import BarrierOutcome, list_stored_inputs
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.stages.stored import StoredInput, WholeRecords
from gristmill_testing.every_nth_step import EveryNth


@dataclass(frozen=True, slots=True)
class EveryNthRow(WholeRecords):
    """Every n-th row of a stored stream, beginning with row `first`."""

    stored: StoredInput
    first: int
    n: int

    @property
    def num_rows(self):
        return self.stored.num_rows

    def count_dropped(self, num_records):
        return {"between": self.num_rows - num_records} if num_records < self.num_rows else {}

    def batches(self, root, seed):
        first = self.first
        for batch in self.stored.batches(root, seed):
            yield batch.take(list(range(first, batch.num_rows, self.n)))
            first = (first - batch.num_rows) % self.n


@dataclass(frozen=True, slots=True)
class EveryNthBarrier:
    """Numbers the records of all sources."""

    step: EveryNth

    def pass_sources(self, sources, run):
        number, units = 0, {}
        for source in sources:
            units[source.name] = []
            for unit, result in source.unit_results():
                inputs = []
                name = fingerprint.of(unit.fingerprint, "every_nth", number % self.step.n)
                for stored in list_stored_inputs(result):
                    inputs.append(EveryNthRow(stored, -number % self.step.n, self.step.n))
                    number += stored.num_rows
                units[source.name].append(replace(unit, fingerprint=name, inputs=tuple(inputs)))
        return BarrierOutcome(units=units, entry_account=self.step.name)
