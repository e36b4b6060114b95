"""Foreign templates tried outside of this process, with limits of time and memory.

A chat template is a program that came with a model, and Jinja computes its constants while it compiles. The parent
therefore never compiles one: plan, `template check` and `explain` send it to a worker that can be ended.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import ItemTimeoutError, OutOfMemoryError, UsageError, WorkerDiedError
from gristmill.core.recipe import runs_user_code
from gristmill.engine.tasks import Task, run_tasks
from gristmill.runtime.pandas_free import block_pandas_import
from gristmill.text.chats.jinja import ChatTemplate
from gristmill.text.chats.template_limits import MAX_GROWTH_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gristmill.core.step import LocalStep
    from gristmill.engine.tasks import Context

TRIAL_SECONDS = 30.0


def run_with_limits(
    function: Callable[[Any], Any],
    argument: Any,
    template: str,
    *,
    steps: Iterable[LocalStep] = (),
    timeout: float | None = None,
) -> Any:
    """What `function(argument)` gives in a worker. `UsageError` naming the template if it exceeds time or memory.

    `steps` are those that the function will load.
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
        )
    except UsageError as error:  # without the notes of the engine: it is about the recipe
        raise UsageError(error.message, help=error.help, **error.context) from None
    except ItemTimeoutError:
        problem = f"has not come to an end in {seconds:g} s"
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
    """Jinja and tokenizers are loaded before the clock runs: they take seconds, and no template is to blame."""
    functions = [step for step in steps if runs_user_code([step]) and not step.runs_untrusted_code]
    if not functions:
        block_pandas_import()
    ChatTemplate("", {}).render([])
    for step in steps:
        if not step.runs_untrusted_code and step not in functions:
            with suppress(Exception):  # it will be raised again where the step is used
                step.load()
    return function, argument


def _call_function(task: Task, context: Context) -> Any:  # noqa: ARG001
    function, argument = context.state
    return function(argument)
