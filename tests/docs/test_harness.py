"""The tests of pages notice what is wrong with a page."""

from pathlib import Path

import pytest

from tests.docs.pages import SHARES, blocks, pages, parsed, share
from tests.docs.running import run_blocks

YAML, TWO = (
    '```yaml title="mine.yaml"\nround: 3\n```\n',
    "```python\nx = 1\n```\n```python\nimport protonorm as pn\n\nprint(x)\n```",
)
RUN = "protonorm run dataset=spiral dataset.points=60 clients=4 rounds=1 partition=iid"
WRONG = {
    "a setting": (f"```bash\n{RUN} gama=3\n```", "gama"),
    "an option": ("```bash\nprotonorm show --newest\n```", "--newest"),
    "a command": ("```bash\nprotonorm train\n```", "no command 'train'|No such command"),
    "a file": ("```bash\nprotonorm run mine.yaml\n```", "mine.yaml"),
    "a file with something wrong in it": (f"{YAML}```bash\nprotonorm run mine.yaml\n```", "round"),
    "a target of make": ("```bash\nmake money\n```", "money"),
    "another program": ("```bash\npip install protonorm\n```", "kind sh"),
    "a program that fails": ("```bash\nls nowhere | cat && ls nowhere\n```", "nowhere"),
    "Python": ("```python\nimport protonorm as pn\n\npn.nothing\n```", "nothing"),
    "a name of a block that stands alone": (TWO, "'x' is not"),
    "what is said to be printed": ("```python\nprint(2)\n# 3\n```", "says '3'"),
    "a change of nothing": (f"<!-- test: rounds=1 -->\n```bash\n{RUN}\n```", "change nothing"),
    "a change where none can be": ("<!-- test: rounds=1 -->\n```bash\nprotonorm list models\n```", "change nothing"),
    "a change of what is not there": ("<!-- test: y -> z -->\n```python\nx = 1\n```", "of something in it"),
    "a change of half a number": ("<!-- test: 10 -> 2 -->\n```python\nx = 100\n```", "of something in it"),
    "a change of a file": ('<!-- test: x -> z -->\n```python title="a.py"\nx = 1\n```', "as it is printed"),
    "a change of an output": ("<!-- test: rounds=1 -->\n```text\nwords\n```", "only"),
    "files that nobody needs": ("<!-- files: tokens tokens.npz -->\n```bash\nprotonorm list models\n```", "not used"),
    "files of no form": ("<!-- files: jokes jokes.txt -->\n```bash\ncat jokes.txt\n```", "jokes is none of"),
    "what comes before": ("<!-- before: protonorm show nothing -->\n```bash\nls\n```", "nothing"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_mistake_on_a_page_fails(what, tmp_path, monkeypatch):
    text, said = WRONG[what]
    found, _ = parsed(text, "page.md")
    with pytest.raises(AssertionError, match=said):
        run_blocks("page.md", found, tmp_path, monkeypatch)


def test_a_right_page_passes_and_is_made_smaller(tmp_path, monkeypatch):
    """Words take the place of others, or are added; the run's name tells the method, its record the rounds."""
    text = f"""
<!-- test: rounds=2 algorithm=fedproto -->
```bash
{RUN}  # a remark
protonorm show \\
  fedproto-spiral
```

```python
import protonorm as pn

x = 2
```

```python
print(x, "points")
# 2 points
```
"""
    run_blocks("page.md", parsed(text, "page.md")[0], tmp_path, monkeypatch)
    (folder,) = (tmp_path / "runs").glob("fedproto-spiral-*")
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2


def test_every_page_is_in_one_share_and_nearly_all_have_blocks():
    shares = [page for name in (*SHARES, "rest") for page in share(name)]
    assert sorted(shares) == pages()
    assert {"README.md", "docs/tutorial.md", "CONTRIBUTING.md"} <= set(shares)
    assert sum(len(blocks(page)) for page in pages()) >= 90


@pytest.mark.parametrize("name", [*SHARES, "rest"])
def test_every_share_is_run_by_a_file_of_tests(name):
    """By its name, or, of one page, by that page."""
    texts = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")]
    wanted = [f'share("{name}")', *(f'PAGE = "{page}"' for page in SHARES.get(name, ()) if len(SHARES[name]) == 1)]
    assert any(one in text for one in wanted for text in texts)
