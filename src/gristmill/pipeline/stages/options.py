"""How a plan is run. None of these options changes the output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gristmill.core.errors import UsageError
from gristmill.core.names import check_choice
from gristmill.engine.parallel_run import Options

if TYPE_CHECKING:
    from collections.abc import Collection

    from gristmill.engine.machine.pinning import Pin
    from gristmill.engine.observing.events import EventLog
    from gristmill.pipeline.monitoring.views import StatusView
    from gristmill.pipeline.stages.stage_context import StepWatch


Monitor = Literal["terminal", "web"]
MONITORS = ("terminal", "web")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of one run. `gristmill run --help` describes each."""

    workers: int | Literal["auto"] = "auto"
    backend: str = "auto"
    """"auto": in this process if the input is small and nothing else stands against it, else in processes."""
    timeout: float | None = None
    """Seconds for the records of one cell (about 4 MiB of input)."""
    update: bool = False
    overwrite: bool = False
    keep_work: bool = False
    progress: bool | None = None
    monitor: Monitor | bool = False
    """A live view of the run: on the terminal (True is the same), or in a browser."""
    monitor_port: int = 0
    """The port of the view in a browser; 0: any free one."""
    view: StatusView | None = None
    """A view that is open already, in place of `monitor`."""
    pin: bool | Pin = "none"
    """Where workers may run: anywhere, on one CPU each, or on the CPUs and in the memory of one NUMA node each."""
    ray_address: str | None = None
    """The address of a Ray cluster; None: the one that is running, or else a new one on this machine."""
    stall_timeout: float = 900.0
    """Seconds without progress after which a run says what it is waiting for."""
    stop_on_stall: bool = False
    """Whether a run without progress stops then."""
    retries: int = 2
    """How often a task that raised is run again."""
    take_over: bool = False
    """Whether to write to an output that a run on another machine may still be using."""
    allow_endpoints: Collection[str] = ()
    """Hosts that a recipe may name as an endpoint though the connection is not encrypted."""
    events: EventLog | None = None
    watch: StepWatch | None = None
    """Watches every step and batch; only for runs in this process."""

    def __post_init__(self) -> None:
        """Raise what the engine would raise, before any planning."""
        if self.monitor is True:
            object.__setattr__(self, "monitor", "terminal")
        elif self.monitor:
            check_choice("monitor", self.monitor, MONITORS)
        Options(workers=self.workers, backend=self.backend, timeout=self.timeout, pin=self.pin)
        if not self.stall_timeout > 0:
            raise UsageError(f"stall_timeout must be a positive number of seconds, not {self.stall_timeout!r}")
        if self.ray_address is not None and self.backend != "ray":
            raise UsageError("an address of a Ray cluster needs the backend ray", help='add backend="ray"')
        if self.update and self.overwrite:
            raise UsageError(
                "update and overwrite exclude each other",
                help="update reuses what is still valid; overwrite rebuilds everything",
            )
