"""The model card of an exported client says what client.json says."""

import json

import pytest

import protonorm as pn
from protonorm.inference.info import model_card
from tests.support import run, spiral


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    return run(spiral(rounds=2, validation=0.3), tmp_path_factory.mktemp("runs")).clients[3]


def test_the_card_says_what_the_file_says(client, tmp_path):
    folder = client.save(tmp_path / "three")
    text, about = (folder / "README.md").read_text(), json.loads((folder / "client.json").read_text())
    assert text.startswith(f"# Client `3` of `{client.info.run}`")
    for name in client.classes:
        assert f"`{name}`" in text
    first = about["facts"]["metrics"][0]
    assert f"| {first['part']} | `{first['rule']}` | {first['samples']} | {first['accuracy']:.4f} |" in text
    assert about["facts"]["date"] in text
    assert about["facts"]["versions"]["torch"] in text
    assert f"`{about['recommended']['rule']}`" in text
    assert about["preprocessing"]["steps"][0] in text
    assert f"round {client.info.round} of 2" in text.lower()
    assert "model.onnx" not in text
    assert about["name"] == "3"


def test_with_onnx_it_has_a_program_that_compiles(client):
    text = model_card(client.info, client.facts, onnx=True)
    programs = [part.split("```")[0] for part in text.split("```python\n")[1:]]
    assert len(programs) == 2
    for program in programs:
        compile(program, "card", "exec")
    assert "onnxruntime.InferenceSession" in programs[1]


def test_names_from_outside_are_text(client):
    nasty = "a`|b\n# heading\x1b[31m"
    info = client.info.model_copy(update={"name": nasty, "classes": [nasty, "b"]})
    text = model_card(info, client.facts, onnx=True)
    assert "\x1b" not in text
    assert "\n# heading" not in text
    assert "`a'/b\\n# heading\\x1b[31m`" in text


def test_facts_survive_the_file(client, tmp_path):
    loaded = pn.load_client(client.save(tmp_path / "three"))
    assert loaded.facts == client.facts
    assert loaded.info == client.info
    assert loaded.name == "3"


def test_a_readme_of_ones_own_is_left_as_it_is(client, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").write_text("mine")
    with pytest.raises(ValueError, match=r"README\.md exists and is not of an exported client"):
        client.save(tmp_path / "mine")
    assert [one.name for one in (tmp_path / "mine").iterdir()] == ["README.md"]
