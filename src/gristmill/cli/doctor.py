"""`gristmill doctor`: the facts about this machine that a bug report needs."""

import json
import math
import os
import platform
import re
import resource
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

import click

from gristmill import __version__
from gristmill.cli.options import json_option
from gristmill.cli.printing import echo, print_json
from gristmill.core.quantities import format_bytes, format_count
from gristmill.engine import machine
from gristmill.runtime.kernels import find_cache_folder
from gristmill.runtime.plugins import list_plugins
from gristmill.storage.commit import count_free_bytes
from gristmill.storage.remembered_proofs import find_plan_cache


@click.command(epilog="Example: gristmill doctor --json")
@json_option
def doctor_command(*, as_json: bool) -> None:
    """Show versions, cores, limits, plugins and the caches of this user.

    Nothing is changed and nothing is sent.
    """
    facts = collect_facts()
    if as_json:
        print_json(json.dumps(facts, indent=2))
        return
    for title, rows in facts.items():
        echo(title)
        width = max(map(len, rows), default=0)
        for name, value in rows.items():
            echo(f"  {name:{width}}  {value}")


def collect_facts() -> dict[str, dict[str, Any]]:
    """Collect everything that the command shows, by heading."""
    return {
        "gristmill": {"version": __version__, "python": sys.version.split()[0], "platform": platform.platform()},
        "machine": _describe_machine(),
        "limits": _list_limits(),
        "folders": _list_folders(),
        "packages": _list_packages(),
        "plugins": _list_plugins(),
    }


def _describe_machine() -> dict[str, Any]:
    cpus, cores, quota = len(machine.find_usable_cpus()), machine.count_physical_cores(), machine.read_cpu_quota()
    return {
        "usable CPUs": cpus,
        "cores": cores,
        "CPU quota": "none" if math.isinf(quota) else f"{quota:g}",
        "default workers": machine.choose_num_workers(cpus, cores, quota),
        "memory limit": format_bytes(machine.read_memory_limit()),
        "memory available": format_bytes(machine.read_memory_available()),
    }


def _list_limits() -> dict[str, Any]:
    names = {"open files": resource.RLIMIT_NOFILE, "processes": resource.RLIMIT_NPROC, "data": resource.RLIMIT_DATA}
    limits = {name: resource.getrlimit(number)[0] for name, number in names.items()}
    return {name: "none" if value == resource.RLIM_INFINITY else value for name, value in limits.items()}


def _list_folders() -> dict[str, Any]:
    plans = find_plan_cache()
    temporary = Path(tempfile.gettempdir())
    return {
        "kernel cache": _describe_cache(find_cache_folder(), "compiled kernel"),
        "plan cache": "off" if plans is None else _describe_cache(plans, "remembered check"),
        "temporary files": f"{temporary}: {format_bytes(count_free_bytes(temporary))} free",
        "current folder": f"{Path.cwd()}: {format_bytes(count_free_bytes(Path.cwd()))} free",
    }


def _describe_cache(folder: Path, content: str) -> str:
    described = f"no {content}s yet"
    if folder.is_dir():
        sizes = [path.stat().st_size for path in folder.rglob("*") if path.suffix in (".nbc", ".json")]
        described = f"{format_count(len(sizes), content)}, {format_bytes(sum(sizes))}"
    writable = next(path for path in (folder, *folder.parents) if path.exists())
    return f"{folder}: {described}{'' if os.access(writable, os.W_OK) else ', not writable'}"


def _list_packages() -> dict[str, str]:
    """List the installed dependencies with their versions, including extras for users."""
    requirements = [line for line in distribution("gristmill").requires or () if "dev" not in line.partition(";")[2]]
    names = sorted({re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in requirements}, key=str.lower)
    return {name: installed for name in names if (installed := _find_version(name))}


def _list_plugins() -> dict[str, str]:
    """The packages with plugins, by name and version, and what each provides. None of them is imported."""
    plugins: dict[str, list[str]] = {}
    for plugin in list_plugins():
        plugins.setdefault(str(plugin.package), []).append(f"{plugin.kind} {plugin.name}")
    return {package: ", ".join(sorted(names)) for package, names in plugins.items()}


def _find_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
