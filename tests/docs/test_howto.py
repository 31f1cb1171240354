"""The answers of the page "How do I …" run as printed, and what they make is what the page says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file
from typer.testing import CliRunner

import protonorm as pn
from protonorm.cli.app import app
from protonorm.session.build import build
from tests.docs.pages import blocks
from tests.docs.running import Reader

PAGE = "docs/howto.md"
LINES = 10  # that an answer may have
PARTNERS = {"berlin": "net.py:small", "lyon": "net.py:middle", "oslo": "net.py:large"}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Do all that the page says, once, in an empty folder."""
    folder = tmp_path_factory.mktemp("howto")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROTONORM_RUNS", "unused")
        patch.setenv("PROTONORM_DATA", str(folder / "data"))
        patch.setenv("MPLBACKEND", "Agg")
        reader = Reader(PAGE, folder, patch)
        try:
            reader.read(blocks(PAGE))
        finally:
            reader.leave()
            plt.close("all")
    return reader


@pytest.fixture
def there(page, monkeypatch):
    """Go to the folder where the page was followed."""
    monkeypatch.chdir(page.folder)
    monkeypatch.setenv("PROTONORM_DATA", str(page.folder / "data"))
    monkeypatch.setenv("PROTONORM_RUNS", "runs")
    monkeypatch.syspath_prepend(str(page.folder))
    return page.folder


def block(words):
    """Find the one block, and no file, in which something stands."""
    (found,) = [one for one in blocks(PAGE) if words in one.text and not one.title]
    return found


def call(line):
    done = CliRunner().invoke(app, line.split()[1:])
    assert done.exit_code == 0, done.output
    return done.output


def records(name):
    """Read the runs whose names begin so."""
    return [pn.read_run(path) for path in sorted(Path("runs").glob(f"{name}-seed*"))]


def reported(run, rule=None):
    return run.chosen.record.rules[rule or run.info.headline].pooled


def test_every_answer_has_at_most_ten_lines():
    for one in blocks(PAGE):
        lines = [line for line in one.text.splitlines() if line.strip()]
        assert len(lines) <= LINES, f"{one.place} has {len(lines)} lines"
        assert one.kind != "bash" or one.title or len(lines) <= 3, one.place


def test_four_methods_over_three_seeds(there):
    for method in ("protonorm", "fedproto", "fedtgp", "feddistill", "local"):
        runs = [run for run in records(f"{method}-spiral") if run.info.experiment.seed in (0, 1, 2)]
        usual = {run.info.experiment.seed for run in runs if "gamma" not in str(run.info.changed)}
        assert usual == {0, 1, 2}, method
        assert all(run.finished and run.info.experiment.clients == 6 for run in runs)


def test_the_sweep_chooses_by_validation(there):
    """The mean over seeds of the validation accuracy, in the round that it chooses, is highest for the chosen γ."""
    assert len(list(there.glob("runs/sweeps/*/sweep.png"))) == 1
    told = call(block("algorithm.gamma=1,5,10").text.strip() + " --best")
    found = {}
    for run in records("protonorm-spiral"):
        if run.info.experiment.seed in (0, 1):
            gamma = run.info.experiment.algorithm.settings["gamma"]
            found.setdefault(gamma, []).append(run.chosen.record.validation["nearest-global"].mean)
    assert found.keys() == {1, 5, 10}
    assert all(len(some) == 2 for some in found.values())
    best = max(found, key=lambda gamma: np.mean(found[gamma]))
    assert re.search(rf"protonorm:gamma={best:g} ", told), (told, found)


def test_the_latex_table_fits_the_runs_and_its_own_columns(there):
    """Braces close, rows have as many cells as the table has columns; ProtoNorm's number is the mean of three runs'."""
    text = Path("table.tex").read_text(encoding="utf-8")
    bare = re.sub(r"\\.|(?m:^%.*$)", "", text)  # without comments and escaped signs
    depth = np.cumsum([{"{": 1, "}": -1}.get(sign, 0) for sign in bare])
    assert depth.min() >= 0
    assert depth[-1] == 0
    begun, ended = (re.findall(rf"\\{way}{{(\w+)}}", text) for way in ("begin", "end"))
    assert (begun, ended) == (["table", "tabular", "minipage"], ["tabular", "minipage", "table"])
    columns = re.search(r"\\begin{tabular}{@{}(\w+)@{}}", text)[1]
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert all(len(re.split(r"(?<!\\)&", row)) == len(columns) for row in rows)
    named = [row.split("&")[0].strip() for row in rows]
    assert [name for name in named if name] == [
        "Method", "ProtoNorm", "FedProto", "FedTGP", "FedDistill", "Local", "majority"
    ]  # fmt: skip
    runs = [run for run in records("protonorm-spiral") if "gamma" not in str(run.info.changed)]
    mean = 100 * np.mean([reported(run) for run in runs])
    assert re.search(rf"ProtoNorm & (\\textbf{{)?{mean:.1f} \$\\pm\$", text)
    assert "over 3 seeds" in text


def test_the_figure_is_a_vector_of_one_columns_width(there):
    """3.3 by 2.2 inches are 237.6 by 158.4 points; there is no picture in it, and letters are letters (Type 42)."""
    content = Path("figure.pdf").read_bytes()
    box = re.search(rb"/MediaBox \[ ?([\d. ]+) ?\]", content)[1].split()
    assert [float(one) for one in box] == pytest.approx([0, 0, 237.6, 158.4])
    assert b"/Subtype /Image" not in content
    assert b"/FontFile2" in content


def shares(method):
    """Return the accuracies (seeds, clients) of the partners in their reported rounds, from the records."""
    runs = records(f"{method}-partners")
    return np.array([run.by_client(run.chosen.record, run.info.headline) for run in runs])


def test_who_gains_is_read_by_name(page, there):
    """A gain is the accuracy in the federation minus that alone; `show` has one seed, the frame the mean of two.

    Berlin has 60 pictures of each of four classes, Lyon 40, Oslo 20; a quarter of them test.
    """
    together, alone = shares("protonorm"), shares("local")
    assert together.shape == alone.shape == (2, 3)
    told = [words for line in page.printed.splitlines() if (words := line.split()) and words[0] in PARTNERS]
    for number, (name, network) in enumerate(PARTNERS.items()):
        pictures = (240, 160, 80)[number]
        (shown,) = [words for words in told if words[:2] == [name, str(pictures)]]
        numbers = [100 * together[0, number], 100 * alone[0, number], 100 * (together - alone)[0, number]]
        assert shown[2:4] == ["4", network]
        assert [float(one.replace("−", "-")) for one in shown[4:]] == pytest.approx(numbers, abs=0.005)
        (meant,) = [words for words in told if words[:2] == [name, network]]
        means = [together[:, number].mean(), alone[:, number].mean(), (together - alone)[:, number].mean()]
        assert [float(one) for one in meant[3:]] == pytest.approx([pictures / 4, *means], abs=1e-4)


def test_the_plot_has_a_group_of_bars_for_each_client(there):
    """Drawn again as printed: bars are as high as the mean accuracies of two seeds, in per cent."""
    exec(compile(block("accuracy.plot.bar").text, "plot", "exec"), {})
    axes = plt.gca()
    assert [one.get_text() for one in axes.get_xticklabels()] == list(PARTNERS)
    assert [one.get_text() for one in axes.get_legend().get_texts()] == ["local", "protonorm:gamma=10"]
    for bars, method in zip(axes.containers, ("local", "protonorm"), strict=True):
        assert [bar.get_height() for bar in bars] == pytest.approx(list(100 * shares(method).mean(0)))
    plt.close("all")
    assert Path("clients.pdf").read_bytes().startswith(b"%PDF")


ALONE = """
import runpy, sys
sys.modules["protonorm"] = sys.modules["torch"] = None  # an import of either fails
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
assert not [name for name in sys.modules if name.split(".")[0] in ("protonorm", "torch") and sys.modules[name]]
"""


def test_the_exported_client_answers_in_a_process_without_protonorm(there):
    """As the best client itself does, by the recommended rule."""
    picture = re.search(r"\S+\.png", block("python answer.py").text)[0]
    words = [sys.executable, "-I", "-c", ALONE, "answer.py", picture]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    network = pn.Experiment(dataset="clients:partners", models=list(PARTNERS.values()), feature_dim=64).models
    kept = json.loads(Path("best/client.json").read_text(encoding="utf-8"))
    assert kept["client"] == np.argmax(shares("protonorm")[0])
    client = pn.load_client("best", network=network[kept["client"]])
    pixels = np.asarray(Image.open(picture))[None, :, :, None]
    assert done.stdout.strip() == client.classes[client.predict(pixels)[0]]


@pytest.mark.parametrize(
    ("name", "samples", "classes", "networks"),
    [
        ("measurements", 240, 3, ["mlp_small", "mlp_wide"]),
        ("patients", 240, 3, ["mlp_small", "mlp_wide"]),
        ("reviews", 240, 3, ["text_mean", "text_cnn"]),
        ("berlin", 240, 4, ["plain", "residual", "depthwise", "dense"]),
        ("wards", 120, 2, ["mlp_small", "mlp_wide"]),
    ],
)
def test_own_data_are_what_a_run_has_trained_on(there, name, samples, classes, networks):
    """All samples and classes that the page made, and the networks that are usual for them."""
    (run,) = records(f"protonorm-{name}")
    assert run.finished
    assert sum(part.sum() for part in run.population) == samples
    assert len(run.info.classes) == classes
    assert run.info.networks == networks
    assert run.client_name(2) == ("c3" if name == "wards" else "2")


def test_pretrained_weights_are_those_of_the_file_behind_their_normalisation(there):
    experiment = pn.Experiment(
        dataset={"name": "fashion", "samples": 200}, models="pretrained.py:shuffle", feature_dim=256, clients=2
    )
    model = build(experiment)[1].site(1).client(0).model
    kept = load_file("weights.safetensors")
    found = {name.split("network.1.")[-1].split("2.", 1)[-1]: one for name, one in model.state_dict().items()}
    base = {name: one for name, one in kept.items() if not name.startswith("fc.")}
    assert len(base) > 200
    for name, value in base.items():
        np.testing.assert_array_equal(found[name].numpy(), value)
    assert [type(part).__name__ for part in model.modules()].count("Normalise") == 1


def test_the_run_is_in_weights_and_biases(there):
    assert len(list(there.glob("runs/wandb/offline-run-*"))) == 1


def test_the_common_test_and_newcomers_are_in_records(there):
    (run,) = [run for run in records("fedavg-spiral") if run.info.experiment.seed == 0]
    assert run.chosen.record.common["received"].auroc > 0
    assert run.chosen.record.newcomers["received"]


def test_the_slurm_script_runs_one_seed_in_the_shared_folder(there, tmp_path):
    """Bash accepts it; what it hands to srun finds the run of that seed in the folder the job was submitted from."""
    assert subprocess.run(["bash", "-n", "seeds.sh"], check=False).returncode == 0
    (tmp_path / "srun").write_text('#!/bin/bash\nprintf "%s\\n" "$PROTONORM_RUNS" "$*"\n', encoding="utf-8")
    (tmp_path / "srun").chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    job = {"PATH": path, "SLURM_SUBMIT_DIR": str(there), "SLURM_ARRAY_TASK_ID": "2"}
    done = subprocess.run(["bash", "seeds.sh"], env=os.environ | job, capture_output=True, text=True, check=True)
    runs, line = done.stdout.splitlines()
    assert Path(runs) == there / "runs"
    before = set(Path("runs").iterdir())
    assert re.search(r"protonorm-spiral-seed2-\w+", call(line))
    assert set(Path("runs").iterdir()) == before
    assert "--array=0-2" in Path("seeds.sh").read_text(encoding="utf-8")
