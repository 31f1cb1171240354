import numpy as np
import pytest
from experiments.figures import (
    Star,
    accuracy_panels,
    convergence,
    distance_curves,
    first_distances,
    heat_maps,
    margin_panels,
    save,
    stars,
    toy_data,
)
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from protonorm.report.drawing import LIGHT, write_figure
from protonorm.report.figures import accuracy_curves, heat_map
from tests.records import hundred, made
from tests.report.pages import runs_of
from tests.support import run, spiral


def pooled(found, rule):
    return [100 * record.rules[rule].pooled for record in found.rounds if record.rules.get(rule)]


def test_curves_have_a_line_for_each_method_and_one_for_the_majority(tmp_path):
    runs = {name: [run(spiral(algorithm=name), out=tmp_path).run] for name in ("protonorm", "local")}
    (axes,) = accuracy_curves(runs).axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "ProtoNorm (nearest-global, 1 seed)",
        "Local (logits, 1 seed)",
        "reported round of a seed",
        "majority",
    ]
    curves = [line for line in axes.lines if line.get_label().startswith("Local")]
    np.testing.assert_allclose(curves[0].get_ydata(), pooled(runs["local"][0], "logits"))


def test_rings_are_the_reported_rounds_at_the_accuracy_of_their_seed(tmp_path):
    """Validation chooses round 2 of the first seed and 1 of the second, with 40 and 50 right of 100; test has its best
    in round 3 of both.
    """
    runs = runs_of(
        tmp_path, "one", [[[10], [40], [90]], [[50], [60], [80]]], validated=[[[1], [9], [2]], [[9], [1], [2]]]
    )
    rings = accuracy_curves({"one": runs}).axes[0].lines[1]
    assert sorted(zip(rings.get_xdata(), rings.get_ydata(), strict=True)) == [(1, 50), (2, 40)]
    ring = convergence({"one": runs[0]}).axes[1].lines[1]
    assert (ring.get_xdata(), ring.get_ydata()) == ([2], [40])


def test_curves_end_with_the_seed_that_ended_first(tmp_path):
    """With patience 1 the first seed ends after its second round, which is no better; the other has three rounds."""
    more = {
        "rules": ["nearest-global"],
        "classes": 1,
        "population": hundred(1),
        "clients": 1,
        "method": {"name": "one"},
    }
    tables = [[10], [20]], [[10], [40], [60]]
    patience = {"early_stopping": 1}
    runs = [
        made(tmp_path / "a", rounds=3, done=2, tested=tables[0], validated=[[9], [5]], **patience, **more),
        made(tmp_path / "b", rounds=3, tested=tables[1], validated=tables[1], seed=1, **patience, **more),
    ]
    line, rings = accuracy_curves({"one": runs}).axes[0].lines[:2]
    assert line.get_ydata().tolist() == [10, 30]
    assert sorted(zip(rings.get_xdata(), rings.get_ydata(), strict=True)) == [(1, 10), (3, 60)]


def test_several_seeds_are_drawn_as_mean_and_band(tmp_path):
    runs = {"local": [run(spiral(algorithm="local", seed=seed), out=tmp_path).run for seed in (0, 1)]}
    (axes,) = accuracy_curves(runs).axes
    assert len(axes.collections) == 1
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels[:1] == ["Local (logits, 2 seeds)"]
    assert "95 % interval of the mean; range of two seeds" in labels
    both = [pooled(one, "logits") for one in runs["local"]]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), np.mean(both, 0))
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((np.min(both), np.max(both)))


def test_protonorm_is_the_strongest_line_wherever_it_stands(tmp_path):
    """It has the first colour and the widest line, above the others, and the legend names its rule."""
    names = ("fedproto", "local", "fedtgp", "protonorm")
    runs = {name: runs_of(tmp_path, name, [[[10], [40]]]) for name in names}
    lines = {line.get_label().split(" (")[0]: line for line in accuracy_curves(runs).axes[0].lines}
    ours, others = lines["ProtoNorm"], [lines[name] for name in ("FedProto", "Local", "FedTGP")]
    assert (ours.get_color(), ours.get_linestyle()) == (LIGHT[0], "-")
    assert all(ours.get_linewidth() > line.get_linewidth() and ours.zorder > line.zorder for line in others)
    assert len({line.get_color() for line in lines.values()} & set(LIGHT)) == 4
    panel = accuracy_panels({"CIFAR": {name: found[0] for name, found in runs.items()}}, {})
    labels = [text.get_text() for text in panel.legends[0].get_texts()]
    assert labels[3] == "protonorm (nearest-global)"
    assert panel.legends[0].get_lines()[3].get_color() == LIGHT[0]


def test_curves_join_the_rounds_that_were_evaluated(tmp_path):
    """Every second round of five, and the last: 2, 4 and 5, of which n has n/6."""
    found = made(tmp_path / "run", rounds=5, evaluate_every=2)
    other = made(tmp_path / "other", rounds=5)  # a seed of which every round was evaluated
    figures = accuracy_curves({"protonorm": [found]}), accuracy_curves({"protonorm": [found, other]})
    drawn = [*(figure.axes[0].lines[0] for figure in figures), convergence({"protonorm": found}).axes[1].lines[0]]
    for line in drawn:
        np.testing.assert_array_equal(line.get_xdata(), [2, 4, 5])
        np.testing.assert_allclose(line.get_ydata(), [200 / 6, 400 / 6, 500 / 6])


def test_a_run_whose_headline_rule_never_existed_has_figures(tmp_path):
    """Under `nearest-global` there is nothing in the first round, and there is no other."""
    found = made(tmp_path / "run", rounds=1)
    labels = [text.get_text() for text in accuracy_curves({"protonorm": [found]}).axes[0].get_legend().get_texts()]
    assert labels == ["ProtoNorm (nearest-global, 1 seed)", "majority"]
    assert convergence({"protonorm": found}).axes


def test_every_method_has_the_next_colour_and_its_rings_too(tmp_path):
    runs = {name: runs_of(tmp_path, name, [[[10], [40]]]) for name in ("one", "two")}
    lines = accuracy_curves(runs).axes[0].lines
    wanted = [to_rgb(colour) for colour in (LIGHT[0], LIGHT[0], LIGHT[1], LIGHT[1])]
    assert [to_rgb(line.get_color()) for line in lines[:4]] == wanted


def test_twenty_methods_are_drawn_in_twenty_ways(tmp_path):
    """No two share a colour, none the marker with its filling, and in eight rounds no two of eight share a place."""
    runs = {f"m{n}": runs_of(tmp_path, f"m{n}", [[[10 + round] for round in range(8)]]) for n in range(20)}
    lines = accuracy_curves(runs).axes[0].lines[:40:2]
    assert len({to_rgb(line.get_color()) for line in lines}) == 20
    assert len({(line.get_marker(), line.get_markerfacecolor() == "white") for line in lines}) == 20
    assert len({str(line._dash_pattern) for line in lines[:10]}) == 10
    assert len({line.get_markevery() for line in lines[:8]}) == 8


def test_the_papers_figures_hold_twenty_methods(tmp_path):
    """Warnings are errors: a legend of twenty names must leave room for the panels, and what lies on each other shows.

    All curves are the same, so that the ring of the seventh method is the seventh round the first one's place.
    """
    names = [f"method {n} of twenty" for n in range(20)]
    runs = dict.fromkeys(names, made(tmp_path / "few", classes=4, rounds=8))
    many = dict.fromkeys(names, made(tmp_path / "many", classes=25, rounds=1))
    curves, bars, sorted_ones = convergence(runs), margin_panels({"x": runs}), margin_panels({"x": many})
    for name, figure in (("curves", curves), ("bars", bars), ("sorted", sorted_ones)):
        assert len(save(figure, tmp_path / name, name, name)) == 2
        panel, legend = figure.axes[0].get_window_extent(), figure.legends[0].get_window_extent()
        assert panel.height > 0.8 * figure.dpi
        assert 0 <= legend.x0 < legend.x1 <= figure.bbox.width
    for figure in (curves, sorted_ones):
        lines = [line for line in figure.axes[0].lines if line.get_label() in runs]
        assert len({to_rgb(line.get_color()) for line in lines}) == 20
        assert len({(line.get_marker(), line.get_markerfacecolor() == "white") for line in lines}) == 20
        assert len({line.get_markevery() for line in lines[:8]}) == 8
    assert len({to_rgb(bar.patches[0].get_facecolor()) for bar in bars.axes[0].containers}) == 20
    sizes = [ring.get_markersize() for ring in curves.axes[1].lines[1::2]]
    assert sizes[:7] == [4, 6, 8, 10, 12, 14, 16]


def test_long_names_stand_below_each_other_in_a_legend(tmp_path):
    short, long = ({f"{n}{name}": made(tmp_path / f"{n}{name}") for n in range(4)} for name in ("a", "b" * 40))
    columns = [convergence(runs).legends[0]._ncols for runs in (short, long)]
    assert columns == [2, 1]


def test_rings_in_one_place_are_drawn_round_each_other(tmp_path):
    runs = {name: runs_of(tmp_path, name, [[[10], [right]]]) for name, right in (("a", 40), ("b", 40), ("c", 60))}
    sizes = [ring.get_markersize() for ring in accuracy_curves(runs).axes[0].lines[1:6:2]]
    assert sizes == [6, 9, 6]


def test_clients_with_names_are_named_in_the_heat_map(tmp_path):
    named = made(tmp_path / "a", clients=2, client_names=["berlin", "$rome$"])
    texts = [text.get_text() for text in heat_map(named).axes[0].get_xticklabels()]
    assert texts == ["berlin", r"\$rome\$"]
    numbered = heat_map(made(tmp_path / "b", clients=2)).axes[0]
    assert "berlin" not in [text.get_text() for text in numbered.get_xticklabels()]


def test_a_run_without_rounds_has_figures(tmp_path):
    found = made(tmp_path / "run", done=0)
    assert [line.get_label() for line in accuracy_curves({"protonorm": [found]}).axes[0].lines] == ["majority"]
    assert convergence({"protonorm": found}).axes
    assert margin_panels({"fashion": {"protonorm": found}}).axes
    assert first_distances(found) is None


def test_the_heat_map_holds_the_counts_and_equal_figures_are_equal_files(tmp_path):
    found = run(spiral(algorithm="local", rounds=1), out=tmp_path).run
    counts = found.population.train + found.population.validation + found.population.test
    np.testing.assert_array_equal(heat_map(found).axes[0].images[0].get_array(), counts.T)
    np.testing.assert_array_equal(heat_maps({"spiral": found}).axes[0].images[0].get_array(), counts)
    one, two = (write_figure(heat_map(found), tmp_path / name / "map.png") for name in "ab")
    assert one.read_bytes() == two.read_bytes()
    assert imread(one).shape[0] > 300


def test_distances_and_margins_are_those_of_the_record(tmp_path):
    """The least, the mean and the greatest distance, before the first step and after each."""
    found = run(spiral(), out=tmp_path).run
    along = first_distances(found)
    assert along.shape == (found.rounds[0].server["alignment.steps"] + 1, 3)
    lines = {line.get_label(): line.get_ydata() for line in distance_curves({"spiral": found}).axes[0].lines}
    np.testing.assert_allclose([lines[name] for name in ("min", "mean", "max")], along.T)
    bars = [bar.get_height() for bar in margin_panels({"spiral": {"protonorm": found}}).axes[0].patches]
    _, margins = found.margins(found.rounds[-1])
    np.testing.assert_allclose(bars, margins / margins.max())


def test_stars_have_a_ray_for_each_prototype_and_fewer_points_than_samples():
    rays, points = np.eye(2), np.random.default_rng(0).standard_normal((4000, 2))
    star = Star("one", rays, np.arange(2), points, np.zeros(4000, dtype=np.int64), small=True)
    axes, empty = stars([star, star, star], across=2).axes[2:]
    ends = [(line.get_xdata()[1], line.get_ydata()[1]) for line in axes.lines[:2]]
    assert ends == [(1, 0), (0, 1)]
    assert len(axes.collections[0].get_offsets()) == 1500
    assert not empty.axison


def test_the_bars_of_the_spirals_clients_add_up_to_their_samples(tmp_path):
    found = run(spiral(algorithm="local", rounds=1), out=tmp_path).run
    _, right = toy_data(np.zeros((9, 2), np.float32), np.arange(9), found).axes
    tops = [bar.get_y() + bar.get_height() for bar in right.patches]
    clients = len(found.population.train)
    assert max(tops) == sum(found.population).sum(1).max()
    assert len(tops) == clients * len(found.info.classes)


def test_names_of_runs_are_text_in_every_figure(tmp_path):
    """Two dollars would be a formula, and a label that begins with _ would be left out."""
    found = run(spiral(), out=tmp_path).run
    name = "_a $x^{2$ 中"
    figures = [
        convergence({name: found}),
        distance_curves({name: found}),
        margin_panels({name: {name: found}, "b": {name: found}}),
        accuracy_curves({name: [found]}),
    ]
    for number, figure in enumerate(figures):
        write_figure(figure, tmp_path / f"{number}.pdf")
    shown = [figures[0].legends[0], figures[2].legends[0], figures[3].axes[0].get_legend()]
    for legend in shown:
        assert legend.get_texts()[0].get_text().startswith(r" _a \$x^{2\$ 中")
