"""Installed packages without an installer: modules and a `.dist-info` folder, as pip would have left them."""

import sys
from pathlib import Path

from gristmill.runtime import plugins


def install_package(site, name, entry_points, modules=None, *, version="1.0", sources=None):
    """Put a package into the folder `site`.

    Args:
        site: A folder, which should be on `sys.path`.
        name: The name of the distribution.
        entry_points: Group -> name -> value.
        modules: Path -> content.
        version: The version.
        sources: For an editable install: the folder for the modules, outside of `site`.
    """
    site = Path(site)
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for group, entries in entry_points.items():
        lines += [f"[{group}]", *(f"{entry} = {value}" for entry, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    recorded = [f"{info.name}/METADATA", f"{info.name}/entry_points.txt", f"{info.name}/RECORD"]
    for path, content in (modules or {}).items():
        file = Path(sources or site, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        if sources is None:
            recorded.append(path)
    if sources is not None:
        recorded.append(f"__editable__.{name}.pth")
        (site / recorded[-1]).write_text(f"{sources}\n")
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in recorded))
    return info


def forget_packages():
    """Let the next search look at `sys.path` again, and import modules of the packages again."""
    plugins._scan_packages.cache_clear()
    plugins._find_root_package.cache_clear()
    for name in [name for name in sys.modules if name.startswith("fake_")]:
        del sys.modules[name]
