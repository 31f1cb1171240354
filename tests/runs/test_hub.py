"""Exported clients and records go to the Hub and come back; a folder stands in for the Hub."""

import shutil
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import protonorm as pn
from protonorm.cli.app import app
from tests.support import run, spiral

huggingface_hub = pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Replace the Hub by a folder, <kind>/<owner>/<name>; return it, and the repositories that were made."""
    root, made = tmp_path / "hub", {}

    class Api:
        def __init__(self, **_):
            pass

        def create_repo(self, repo_id, *, repo_type, private, exist_ok):
            assert exist_ok
            made[repo_type, repo_id] = private

        def upload_folder(self, *, folder_path, repo_id, repo_type, allow_patterns):
            for file in Path(folder_path).iterdir():
                if any(fnmatch(file.name, pattern) for pattern in allow_patterns):
                    (root / repo_type / repo_id).mkdir(parents=True, exist_ok=True)
                    shutil.copy(file, root / repo_type / repo_id / file.name)

    def snapshot_download(repo_id, *, repo_type, revision, allow_patterns):
        if not (root / repo_type / repo_id).is_dir():
            raise OSError(f"404 for {repo_id}\n at {revision}")
        return str(root / repo_type / repo_id)

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return root, made


def test_a_client_returns_from_the_hub(tmp_path, hub):
    root, made = hub
    result = run(spiral(rounds=1), out=tmp_path / "runs")
    client = result.clients[2]
    assert client.push_to_hub("lab/client-2").endswith("/lab/client-2")
    assert made == {("model", "lab/client-2"): True}
    card = (root / "model/lab/client-2/README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: protonorm\n")
    inputs = result.experiment.dataset.load().inputs[:9]
    for source in ("lab/client-2", root / "model/lab/client-2"):
        loaded = pn.TrainedClient.from_pretrained(source)
        np.testing.assert_array_equal(loaded.scores(inputs)["logits"], client.scores(inputs)["logits"])
    with pytest.raises(
        ValueError, match="lab/other is no folder here, and cannot be downloaded: 404 for lab/other at v1"
    ):
        pn.TrainedClient.from_pretrained("lab/other", revision="v1")
    for name in ("client", "a/b/c", "../b", "a/b c"):
        with pytest.raises(ValueError, match="A repository must be OWNER/NAME"):
            client.push_to_hub(name)


def test_a_record_returns_from_the_hub_without_networks(tmp_path, hub):
    _, made = hub
    result = run(spiral(rounds=1), out=tmp_path / "runs")
    result.push_to_hub("lab/record", private=False)
    assert made == {("dataset", "lab/record"): False}
    loaded = pn.Result.from_pretrained("lab/record")
    assert loaded.run.info.key == result.run.info.key
    assert loaded.history == result.history
    with pytest.raises(ValueError, match="was archived without its networks"):
        loaded.clients[0].scores(np.zeros((1, 2), np.float32))


def test_nothing_is_uploaded_but_by_the_word(tmp_path, hub):
    root, made = hub
    key = run(spiral(rounds=1), out=tmp_path / "runs").run.info.key
    words = ["--out", str(tmp_path / "runs")]
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "private.txt").write_text("mine")
    for name, command in (
        ("client", ["export", key, str(tmp_path / "exported"), "--client", "1", *words]),
        ("records", ["archive", key, "--to", str(tmp_path / "records"), *words]),
    ):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        assert (("model", f"lab/{name}") in made) is False
        done = CliRunner().invoke(app, [*command, "--push-to", f"lab/{name}"])
        assert done.exit_code == 0, done.output
        assert f"/lab/{name}" in done.output
    assert set(made) == {("model", "lab/client"), ("dataset", "lab/records")}
    assert len(list((root / "dataset/lab/records").iterdir())) == 1
