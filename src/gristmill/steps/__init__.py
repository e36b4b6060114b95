"""The steps: frozen, validated, picklable descriptions of what happens to records, and their kernels.

Each step is imported from its module at first use. Its name in recipes is its class name in snake case: `MapBatches`
is `map_batches`.
"""

TYPE_CHECKING = False  # as in typing
if TYPE_CHECKING:
    from gristmill.steps.cleaning.html import Html
    from gristmill.steps.cleaning.normalize import Normalize
    from gristmill.steps.cleaning.pii import Pii
    from gristmill.steps.cleaning.url import Url
    from gristmill.steps.decontaminate.decontaminate import Decontaminate
    from gristmill.steps.deduplicate.deduplicate import Deduplicate
    from gristmill.steps.filter import Filter
    from gristmill.steps.images.images import Images
    from gristmill.steps.language import Language
    from gristmill.steps.length import Length
    from gristmill.steps.limit import Limit
    from gristmill.steps.map import Map
    from gristmill.steps.map_batches import MapBatches
    from gristmill.steps.mix import Mix
    from gristmill.steps.pack.pack import Pack
    from gristmill.steps.quality.c4 import C4
    from gristmill.steps.quality.code import Code
    from gristmill.steps.quality.fineweb import Fineweb
    from gristmill.steps.quality.gopher_quality import GopherQuality
    from gristmill.steps.quality.gopher_repetition import GopherRepetition
    from gristmill.steps.quality.quality_model import QualityModel
    from gristmill.steps.quality.repetition import Repetition
    from gristmill.steps.quality.scores import Scores
    from gristmill.steps.read.read import Read
    from gristmill.steps.rename import Rename
    from gristmill.steps.render.render import Render
    from gristmill.steps.sample import Sample
    from gristmill.steps.select import Select
    from gristmill.steps.shuffle import Shuffle
    from gristmill.steps.split import Split
    from gristmill.steps.tokenize.tokenize import Tokenize
    from gristmill.steps.toxicity import Toxicity
    from gristmill.steps.write import Write

__all__ = [
    "C4",
    "Code",
    "Decontaminate",
    "Deduplicate",
    "Filter",
    "Fineweb",
    "GopherQuality",
    "GopherRepetition",
    "Html",
    "Images",
    "Language",
    "Length",
    "Limit",
    "Map",
    "MapBatches",
    "Mix",
    "Normalize",
    "Pack",
    "Pii",
    "QualityModel",
    "Read",
    "Rename",
    "Render",
    "Repetition",
    "Sample",
    "Scores",
    "Select",
    "Shuffle",
    "Split",
    "Tokenize",
    "Toxicity",
    "Url",
    "Write",
]

_HOMES = {
    "C4": "gristmill.steps.quality.c4",
    "Code": "gristmill.steps.quality.code",
    "Decontaminate": "gristmill.steps.decontaminate.decontaminate",
    "Deduplicate": "gristmill.steps.deduplicate.deduplicate",
    "Filter": "gristmill.steps.filter",
    "Fineweb": "gristmill.steps.quality.fineweb",
    "GopherQuality": "gristmill.steps.quality.gopher_quality",
    "GopherRepetition": "gristmill.steps.quality.gopher_repetition",
    "Html": "gristmill.steps.cleaning.html",
    "Images": "gristmill.steps.images.images",
    "Language": "gristmill.steps.language",
    "Length": "gristmill.steps.length",
    "Limit": "gristmill.steps.limit",
    "Map": "gristmill.steps.map",
    "MapBatches": "gristmill.steps.map_batches",
    "Mix": "gristmill.steps.mix",
    "Normalize": "gristmill.steps.cleaning.normalize",
    "Pack": "gristmill.steps.pack.pack",
    "Pii": "gristmill.steps.cleaning.pii",
    "QualityModel": "gristmill.steps.quality.quality_model",
    "Read": "gristmill.steps.read.read",
    "Rename": "gristmill.steps.rename",
    "Render": "gristmill.steps.render.render",
    "Repetition": "gristmill.steps.quality.repetition",
    "Sample": "gristmill.steps.sample",
    "Scores": "gristmill.steps.quality.scores",
    "Select": "gristmill.steps.select",
    "Shuffle": "gristmill.steps.shuffle",
    "Split": "gristmill.steps.split",
    "Tokenize": "gristmill.steps.tokenize.tokenize",
    "Toxicity": "gristmill.steps.toxicity",
    "Url": "gristmill.steps.cleaning.url",
    "Write": "gristmill.steps.write",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'gristmill.steps' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
