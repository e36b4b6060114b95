"""Trials of untrusted chat templates in a worker process, with limits on time and memory.

A chat template is a program that came with a model, and Jinja computes its constants while it compiles. The parent
process therefore never compiles one: plan, `template check` and `explain` send it to a worker, which can be killed.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import ItemTimeoutError, OutOfMemoryError, UsageError, WorkerDiedError
from gristmill.core.recipe import runs_user_code
from gristmill.engine.tasks import Task, run_tasks
from gristmill.runtime.pandas_free import block_pandas_import
from gristmill.text.chats.template_limits import MAX_GROWTH_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gristmill.core.step import LocalStep
    from gristmill.engine.pool.worker_pool import WorkerPool
    from gristmill.engine.tasks import Context

TRIAL_SECONDS = 30.0


def run_with_limits(
    function: Callable[[Any], Any],
    argument: Any,
    template: str,
    *,
    steps: Iterable[LocalStep] = (),
    timeout: float | None = None,
    pool: WorkerPool | None = None,
) -> Any:
    """Call `function(argument)` in a worker, and return its result.

    Args:
        function: The function.
        argument: Its only argument.
        template: The name of the template, for messages.
        steps: The steps that the function will load.
        timeout: Seconds for the call; None: `TRIAL_SECONDS`.
        pool: The pool that the worker is taken from; None: it is started for this call.

    Raises:
        UsageError: The template took more time or memory than it may, or ended the worker.
    """
    seconds = timeout or TRIAL_SECONDS
    try:
        [(_, result)] = run_tasks(
            _call_function,
            [Task(f"trial of {template}", None)],
            workers=1,
            setup=partial(_set_up_worker, function, argument, tuple(steps)),
            timeout=seconds,
            retries=0,
            max_growth_bytes=MAX_GROWTH_BYTES,
            desc="trial",
            progress=False,
            pool=pool,
        )
    except UsageError as error:  # raised again without the engine's notes on tasks: it is about the recipe
        raise UsageError(error.message, help=error.help, **error.context) from None
    except ItemTimeoutError:
        problem = f"did not end within {seconds:g} s"
    except OutOfMemoryError:
        problem = f"takes more than {MAX_GROWTH_BYTES >> 30} GiB of memory"
    except WorkerDiedError as error:
        problem = f"ends the process that runs it ({error.message})"
    else:
        return result
    raise UsageError(
        f"the template of {template} {problem}",
        help="look for a loop or a large number in it, or name another template",
    )


def _set_up_worker(function: Callable[[Any], Any], argument: Any, steps: Sequence[LocalStep]) -> Any:
    """Load Jinja and tokenizers before the clock runs: they take seconds, which no template is to blame for."""
    from gristmill.text.chats.jinja import ChatTemplate  # noqa: PLC0415  (only chats need it)

    functions = [step for step in steps if runs_user_code([step]) and not step.runs_untrusted_code]
    if not functions:
        block_pandas_import()
    ChatTemplate("", {}).render([])
    for step in steps:
        if not step.runs_untrusted_code and step not in functions:
            with suppress(Exception):  # loading fails again where the step is used, with the right message
                step.load()
    return function, argument


def _call_function(task: Task, context: Context) -> Any:  # noqa: ARG001
    function, argument = context.state
    return function(argument)
