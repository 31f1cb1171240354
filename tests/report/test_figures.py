import numpy as np
from matplotlib.image import imread

from protonorm.report.figures import accuracy_curves, heat_map, save_figure
from tests.support import run, spiral


def test_curves_have_a_line_for_each_method_and_one_for_the_majority(tmp_path):
    runs = {name: [run(spiral(algorithm=name), out=tmp_path).run] for name in ("protonorm", "local")}
    (axes,) = accuracy_curves(runs).axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "protonorm (global)",
        "local (logits)",
        "majority",
    ]
    drawn = axes.lines[1].get_ydata()
    np.testing.assert_allclose(drawn, [100 * line["rules"]["logits"]["pooled"] for line in runs["local"][0].history])


def test_several_seeds_are_drawn_as_mean_and_band(tmp_path):
    runs = {"local": [run(spiral(algorithm="local", seed=seed), out=tmp_path).run for seed in (0, 1)]}
    (axes,) = accuracy_curves(runs).axes
    assert len(axes.collections) == 1
    both = [[100 * line["rules"]["logits"]["pooled"] for line in one.history] for one in runs["local"]]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), np.mean(both, 0))


def test_the_heat_map_holds_the_counts_and_equal_figures_are_equal_files(tmp_path):
    found = run(spiral(algorithm="local", rounds=1), out=tmp_path).run
    figure = heat_map(found)
    counts = np.array(found.about["counts"]["train"]) + np.array(found.about["counts"]["test"])
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), counts.T)
    one, two = (save_figure(heat_map(found), tmp_path / name / "map.png") for name in "ab")
    assert one.read_bytes() == two.read_bytes()
    assert imread(one).shape[0] > 300
