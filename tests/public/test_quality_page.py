"""The recipe of the page about quality runs, and keeps what the page says."""

import json
import re
from pathlib import Path

import gristmill as gm
from gristmill.recipe.load import parse_recipe

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/quality.md").read_text()

ENGLISH = """The mill stands by the river, and it has been there for as long as people can remember. In the morning
the miller opens the gate, the water begins to run, and the heavy wheel turns with a sound that is heard in the whole
valley. Farmers bring wheat and rye in sacks; they wait, talk about the weather, and go home with flour that is still
warm.""".replace("\n", " ")
GERMAN = """Die Mühle steht am Fluss und ist dort, so lange man denken kann. Am Morgen öffnet der Müller das Wehr, das
Wasser beginnt zu laufen, und das schwere Rad dreht sich mit einem Geräusch, das man im ganzen Tal hört. Die Bauern
bringen Weizen und Roggen in Säcken; sie warten, reden über das Wetter und gehen mit Mehl nach Hause, das nicht kalt
ist.""".replace("\n", " ")


def test_the_recipe_of_the_page_runs(tmp_path):
    recipe = re.search(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]
    (tmp_path / "data").mkdir()
    texts = [ENGLISH, GERMAN, "Menu\n" * 60, "1 2 3", "", "too short to be kept", ENGLISH.replace("the", "of") * 2]
    lines = [json.dumps({"text": text, "id": number}) for number, text in enumerate(texts)]
    (tmp_path / "data" / "a.jsonl").write_text("\n".join(lines))
    result = gm.run(parse_recipe(recipe, folder=str(tmp_path)), backend="serial", progress=False)
    kept = {record["id"]: record for record in result.dataset()}
    assert {0, 1} == set(kept)
    assert [kept[number]["language"] for number in (0, 1)] == ["en", "de"]
    assert kept[0]["score_lines_per_word"] == 1 / len(ENGLISH.split())
    assert (tmp_path / "out/web/dropped/language-no_letters.jsonl").exists()
