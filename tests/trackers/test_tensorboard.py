"""What is written for TensorBoard, read back with TensorBoard's own reader."""

import json
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from protonorm.cli.app import app
from tests.support import contents, run, run_folder, spiral

SMALL = ["dataset=spiral", "dataset.points=60", "partition.alpha=0.5", "partition.least=4", "clients=3", "rounds=2"]


@pytest.fixture
def read():
    """Return a function that reads the log of a run."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard")

    def accumulate(folder):
        found = reader.EventAccumulator(
            str(folder / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0, "histograms": 0, "images": 0}
        )
        return found.Reload()

    return accumulate


def curve(log, tag):
    return [(event.step, event.value) for event in log.Scalars(tag)]


def rounded(run, value):
    """Numbers of the record as TensorBoard keeps them: 32 bits."""
    return [(record.round, float(np.float32(value(record)))) for record in run.rounds]


def check_scalars(log, run):
    for rule in ("nearest-global", "nearest-local", "logits"):
        for name in ("pooled", "mean", "worst"):
            wanted = rounded(run, lambda record, rule=rule, name=name: getattr(record.rules[rule], name))
            assert curve(log, f"accuracy/{rule}/{name}") == wanted
            wanted = rounded(run, lambda record, rule=rule, name=name: getattr(record.validation[rule], name))
            assert curve(log, f"validation/{rule}/{name}") == wanted
    assert curve(log, "loss/train") == rounded(run, lambda record: record.loss)
    assert curve(log, "bytes/up") == rounded(run, lambda record: record.bytes.up)
    assert curve(log, "bytes/down") == rounded(run, lambda record: record.bytes.down)
    assert curve(log, "server/alignment.steps") == rounded(run, lambda record: record.server["alignment.steps"])
    assert curve(log, "samples/unseen") == rounded(run, lambda record: record.unseen)
    for name in ("min", "mean", "max"):
        wanted = rounded(run, lambda record, name=name: getattr(record.prototypes, name))
        assert curve(log, f"prototypes/distance/{name}") == wanted
    assert curve(log, "prototypes/margin/mean") == rounded(run, lambda record: run.margins(record)[1].mean())


def test_scalars_are_those_of_the_record(tmp_path, read):
    experiment = spiral()
    result = run(experiment, out=tmp_path, tracker="tensorboard")
    folder = run_folder(experiment, tmp_path)
    log = read(folder)
    check_scalars(log, result.run)
    assert dict(curve(log, "seconds/round")) == pytest.approx(result.run.seconds, rel=1e-3)
    level = float(np.float32(result.run.majority.pooled))
    assert curve(log, "accuracy/majority/pooled") == [(1, level), (2, level), (3, level)]


def test_histograms_hold_the_clients_and_the_classes(tmp_path, read):
    experiment = spiral()
    found = run(experiment, out=tmp_path, tracker="tensorboard").run
    log = read(run_folder(experiment, tmp_path))
    for name, part in (("clients", found.by_client), ("classes", found.by_class)):
        events = log.Histograms(f"accuracy/logits/{name}")
        assert [event.step for event in events] == [1, 2, 3]
        shares = part(found.rounds[-1], "logits")
        assert events[-1].histogram_value.num == (~np.isnan(shares)).sum()
        assert events[-1].histogram_value.sum == pytest.approx(np.nansum(shares))
    assert len(log.Histograms("prototypes/margins")) == 3


def test_settings_partition_and_prototypes_are_there(tmp_path, read):
    experiment = spiral(rounds=7)
    found = run(experiment, out=tmp_path, tracker="tensorboard").run
    folder = found.folder
    log = read(folder)
    (settings,) = log.Tensors("settings/text_summary")
    assert b"| algorithm.gamma | 10.0 |" in settings.tensor_proto.string_val[0]
    (level,) = log.Tensors("majority/text_summary")
    assert b"most frequent class: pooled" in level.tensor_proto.string_val[0]
    (reported,) = log.Tensors("reported/text_summary")
    wanted = f"Round {found.chosen.record.round} is reported: it has the best mean validation accuracy."
    assert reported.tensor_proto.string_val[0].decode() == wanted
    (image,) = log.Images("partition")
    assert image.encoded_image_string.startswith(b"\x89PNG")
    assert "custom_scalars__config__" in log.Tags()["tensors"]
    shown = sorted(path.parent.parent.name for path in folder.glob("tensorboard/*/prototypes/tensors.tsv"))
    assert shown == ["00001", "00003", "00004", "00005", "00007"]
    last = np.loadtxt(folder / "tensorboard" / "00007" / "prototypes" / "tensors.tsv", delimiter="\t")
    classes, vectors = found.prototypes(7)
    assert last == pytest.approx(vectors)
    names = (folder / "tensorboard" / "00007" / "prototypes" / "metadata.tsv").read_text().splitlines()
    assert names == [found.info.classes[k] for k in classes]
    assert (folder / "tensorboard" / "projector_config.pbtxt").read_text().count("embeddings {") == 5


def test_the_hparams_tab_gets_settings_and_outcome(tmp_path, read):
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2

    experiment = spiral()
    result = run(experiment, out=tmp_path, tracker="tensorboard")
    log = read(run_folder(experiment, tmp_path))
    found = {}
    for tag in (metadata.SESSION_START_INFO_TAG, metadata.SESSION_END_INFO_TAG):
        content = log.SummaryMetadata(tag).plugin_data.content
        found[tag] = plugin_data_pb2.HParamsPluginData.FromString(content)
    settings = found[metadata.SESSION_START_INFO_TAG].session_start_info.hparams
    assert settings["algorithm"].string_value == "protonorm"
    assert settings["lr"].number_value == 0.05
    assert found[metadata.SESSION_END_INFO_TAG].session_end_info.status == 1  # success
    summary = result.summary()
    reported = result.run.chosen
    assert curve(log, "accuracy/reported/pooled") == [
        (3, pytest.approx(reported.record.rules["nearest-global"].pooled))
    ]
    assert curve(log, "accuracy/reported/round") == [(3, reported.record.round)]
    assert curve(log, "accuracy/best/pooled") == [(3, pytest.approx(summary.best.pooled))]
    assert curve(log, "accuracy/last/pooled") == [(3, pytest.approx(summary.last.pooled))]


def test_interrupted_and_resumed_a_log_has_every_round_once(tmp_path, read):
    experiment = spiral(rounds=4)

    def interrupt(round):
        if round.number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(experiment, out=tmp_path, tracker="tensorboard", watch=interrupt)
    folder = run_folder(experiment, tmp_path)
    assert [step for step, _ in curve(read(folder), "loss/train")] == [1]  # the watch stopped it before it was told
    result = run(experiment, out=tmp_path, tracker="tensorboard")
    log = read(folder)
    check_scalars(log, result.run)
    assert curve(log, "accuracy/best/pooled")[0][0] == 4
    times = [event.wall_time for event in log.Scalars("loss/train")]
    assert times == sorted(times)


def test_a_log_that_was_left_open_is_written_anew(tmp_path, read):
    """What a killed run leaves: events of rounds that were never committed, and files of another process."""
    experiment = spiral(rounds=2)
    result = run(experiment, out=tmp_path, tracker="tensorboard")
    folder = run_folder(experiment, tmp_path) / "tensorboard"
    (events,) = folder.glob("events.*")
    events.with_name("events.out.tfevents.9999999999.elsewhere.1.0").write_bytes(events.read_bytes() + b"torn")
    run(experiment, out=tmp_path, tracker="tensorboard")
    assert len(list(folder.glob("events.*"))) == 1
    check_scalars(read(folder.parent), result.run)


def test_a_finished_run_is_logged_afterwards_at_the_times_of_its_rounds(tmp_path, read):
    experiment = spiral()
    result = run(experiment, out=tmp_path)
    before = contents(run_folder(experiment, tmp_path))
    run(experiment, out=tmp_path, tracker="tensorboard")
    folder = run_folder(experiment, tmp_path)
    log = read(folder)
    check_scalars(log, result.run)
    after = {name: text for name, text in contents(folder).items() if not name.startswith("tensorboard")}
    assert after == before
    times = [event.wall_time for event in log.Scalars("loss/train")]
    assert np.diff(times) == pytest.approx([result.run.seconds[round] for round in (2, 3)], abs=1e-3)
    assert times[-1] == pytest.approx((folder / "server.safetensors").stat().st_mtime, abs=0.01)


def test_a_method_without_prototypes_and_a_run_without_rounds_are_logged(tmp_path, read):
    alone, none = spiral(algorithm="local", rounds=1), spiral(rounds=0)
    for experiment in (alone, none):
        run(experiment, out=tmp_path, tracker="tensorboard")
    log = read(run_folder(alone, tmp_path))
    assert curve(log, "accuracy/last/pooled")
    assert not [tag for tag in log.Tags()["scalars"] if tag.startswith("prototypes")]
    assert read(run_folder(none, tmp_path)).Tags()["scalars"] == []


def test_rounds_without_evaluation_and_what_a_record_has_lost_do_not_stop_a_log(tmp_path, read):
    """Every second round of three is evaluated, and the last; all times and the prototypes of round 2 are gone."""
    experiment = spiral(evaluate_every=2)
    folder = run(experiment, out=tmp_path).run.folder
    (folder / "prototypes" / "2.safetensors").unlink()
    (folder / "timings.jsonl").unlink()
    run(experiment, out=tmp_path, tracker="tensorboard")
    log = read(folder)
    assert [step for step, _ in curve(log, "accuracy/logits/pooled")] == [2, 3]
    assert [step for step, _ in curve(log, "loss/train")] == [1, 2, 3]
    (told,) = log.Tensors("prototypes/text_summary")
    assert b"2.safetensors is missing" in told.tensor_proto.string_val[0]


def test_the_command_line_tracks_one_run_and_a_comparison(tmp_path, read):
    call = CliRunner().invoke
    options = ["--engine", "serial", "--out", str(tmp_path), "--json"]
    plain = json.loads(call(app, ["run", *SMALL, *options]).stdout)
    tracked = json.loads(call(app, ["run", *SMALL, "tracker=tensorboard", *options]).stdout)
    assert tracked == plain
    result = call(app, ["compare", "fedproto", *SMALL, "tracker=tensorboard", *options])
    assert result.exit_code == 0, result.output
    logs = sorted(path.parent.name.split("-")[0] for path in tmp_path.glob("*/tensorboard"))
    assert logs == ["fedproto", "local", "protonorm"]
    assert [step for step, _ in curve(read(tmp_path / plain["key"]), "loss/train")] == [1, 2]


@pytest.mark.parametrize("command", [["run"], ["compare", "fedproto"]])
def test_without_tensorboard_a_sentence_says_what_to_install(tmp_path, monkeypatch, command):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    result = CliRunner().invoke(app, [*command, *SMALL, "tracker=tensorboard", "--out", str(tmp_path / "runs")])
    assert result.exit_code == 2
    assert "pip install '.[track]' in a checkout" in result.stderr
    assert not (tmp_path / "runs").exists()


def test_an_unknown_tracker_is_refused_with_the_nearest_name(tmp_path):
    result = CliRunner().invoke(app, ["run", *SMALL, "tracker=tensorbored", "--out", str(tmp_path / "runs")])
    assert result.exit_code == 2
    assert "did you mean 'tensorboard'" in result.stderr
    assert not (tmp_path / "runs").exists()
