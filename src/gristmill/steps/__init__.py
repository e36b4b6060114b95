"""The steps: frozen, validated, picklable descriptions of what happens to records, and their kernels.

Each step is imported from its module at first use. Its name in recipes is its class name in snake case: `MapBatches`
is `map_batches`.
"""

from gristmill.runtime import fetch_at_first_use

TYPE_CHECKING = False  # as in typing, which every worker would otherwise import here
if TYPE_CHECKING:
    from gristmill.readers.read import Read as Read
    from gristmill.steps.cleaning.html import Html as Html
    from gristmill.steps.cleaning.normalize import Normalize as Normalize
    from gristmill.steps.cleaning.pii import Pii as Pii
    from gristmill.steps.cleaning.url import Url as Url
    from gristmill.steps.columns import Rename as Rename
    from gristmill.steps.columns import Select as Select
    from gristmill.steps.decontaminate.decontaminate import Decontaminate as Decontaminate
    from gristmill.steps.deduplicate.deduplicate import Deduplicate as Deduplicate
    from gristmill.steps.fim import Fim as Fim
    from gristmill.steps.functions import Filter as Filter
    from gristmill.steps.functions import Map as Map
    from gristmill.steps.functions import MapBatches as MapBatches
    from gristmill.steps.images import Images as Images
    from gristmill.steps.keep_best import Cap as Cap
    from gristmill.steps.keep_best import KeepBest as KeepBest
    from gristmill.steps.language import Language as Language
    from gristmill.steps.length import Length as Length
    from gristmill.steps.mix import Mix as Mix
    from gristmill.steps.pack import Pack as Pack
    from gristmill.steps.quality.c4 import C4 as C4
    from gristmill.steps.quality.filters import Code as Code
    from gristmill.steps.quality.filters import Fineweb as Fineweb
    from gristmill.steps.quality.filters import GopherQuality as GopherQuality
    from gristmill.steps.quality.filters import GopherRepetition as GopherRepetition
    from gristmill.steps.quality.filters import Repetition as Repetition
    from gristmill.steps.quality.filters import Scores as Scores
    from gristmill.steps.quality.quality_model import QualityModel as QualityModel
    from gristmill.steps.render.render import Render as Render
    from gristmill.steps.sampling import Limit as Limit
    from gristmill.steps.sampling import Sample as Sample
    from gristmill.steps.sampling import Shuffle as Shuffle
    from gristmill.steps.sampling import Split as Split
    from gristmill.steps.tokenize.tokenize import Tokenize as Tokenize
    from gristmill.steps.toxicity import Toxicity as Toxicity
    from gristmill.steps.write import Write as Write

_MODULES = {
    ".readers.read": "Read",
    "cleaning.html": "Html",
    "cleaning.normalize": "Normalize",
    "cleaning.pii": "Pii",
    "cleaning.url": "Url",
    "columns": "Rename Select",
    "decontaminate.decontaminate": "Decontaminate",
    "deduplicate.deduplicate": "Deduplicate",
    "fim": "Fim",
    "functions": "Filter Map MapBatches",
    "images": "Images",
    "keep_best": "Cap KeepBest",
    "language": "Language",
    "length": "Length",
    "mix": "Mix",
    "pack": "Pack",
    "quality.c4": "C4",
    "quality.filters": "Code Fineweb GopherQuality GopherRepetition Repetition Scores",
    "quality.quality_model": "QualityModel",
    "render.render": "Render",
    "sampling": "Limit Sample Shuffle Split",
    "tokenize.tokenize": "Tokenize",
    "toxicity": "Toxicity",
    "write": "Write",
}
__getattr__, __dir__, __all__ = fetch_at_first_use(__name__, _MODULES)
