"""The report page in a real browser, from a file, without a network."""

import shutil

import pytest

from protonorm.report.page import write_page
from tests.records import hundred, made

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser():
    place = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not place:
        pytest.skip("The page was not opened in a browser: chromium is not installed.")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip("The page was not opened in a browser: playwright is not installed.")
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=place, args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A comparison of three methods on twelve classes, one of them with two seeds, one of them stopped early."""
    folder = tmp_path_factory.mktemp("runs")
    common = {
        "classes": 12,
        "clients": 6,
        "rounds": 8,
        "width": 16,
        "names": ["</script><b>bold", *map(str, range(11))],
        "networks": ("a", "b"),
    }
    runs = [
        made(folder / "a", **common),
        made(folder / "b", seed=1, **common),
        made(folder / "c", method={"name": "fedproto"}, **common),
        made(folder / "d", method={"name": "fedtgp"}, done=3, **common),
        made(folder / "e", method={"name": "local"}, **common),
    ]
    return write_page(runs, folder / "page.html").as_uri()


@pytest.fixture
def visit(browser, address):
    """Open the page; afterwards nothing may have complained, and nothing but the file may have been asked for."""
    contexts, complaints, asked = [], [], []

    def open_page(where=address, **options):
        contexts.append(browser.new_context(**({"viewport": {"width": 1200, "height": 800}} | options)))
        page = contexts[-1].new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(where)
        page.wait_for_selector("#parts-classes svg")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints
    assert {url.split("#")[0] for url in asked} <= {address, *(url for url in asked if url.endswith("one.html"))}
    assert all(url.startswith("file:") for url in asked)


def test_every_chart_is_drawn_and_says_its_conclusion(visit):
    page = visit()
    charts = page.query_selector_all('.plot svg[role="img"], .ball svg[role="img"]')
    assert len(charts) == len(page.query_selector_all("figure")) == 14
    assert all(len(chart.get_attribute("aria-label")) > 40 for chart in charts)
    assert page.locator("b", has_text="bold").count() == 0  # a class's name is text
    assert "prototypes" in page.locator("#sphere-ball svg").get_attribute("aria-label")


def test_the_slider_changes_the_round_on_the_sphere(visit):
    page = visit(reduced_motion="reduce")
    slider, shown = page.locator("#sphere-round"), page.locator("#sphere-shown")
    assert shown.inner_text() == "8 of 8"
    before = page.locator("#sphere-ball svg").inner_html()
    slider.focus()
    page.keyboard.press("ArrowLeft")
    assert shown.inner_text() == "7 of 8"
    assert slider.get_attribute("aria-valuetext") == "round 7"
    assert "round 7" in page.locator("#sphere-conclusion").inner_text()
    assert page.locator("#sphere-ball svg").inner_html() != before
    page.locator("#sphere-run").select_option(label="FedTGP")
    assert shown.inner_text() == "3 of 3"


def test_keys_buttons_and_dragging_turn_the_sphere(visit):
    page = visit()
    ball = page.locator("#sphere-ball")

    def pose():
        return [ball.locator("svg").get_attribute(name) for name in ("data-yaw", "data-pitch")]

    seen = [pose()]
    ball.focus()
    for key in ("ArrowLeft", "ArrowUp"):
        page.keyboard.press(key)
        seen.append(pose())
    page.get_by_role("button", name="Turn right").click()
    seen.append(pose())
    box = ball.bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 160, box["y"] + 120)
    page.mouse.up()
    seen.append(pose())
    assert len({tuple(one) for one in seen}) == len(seen)
    page.get_by_role("button", name="Reset").click()
    assert pose() == seen[0]


def test_rounds_play_and_stop_at_the_last(visit):
    page = visit(reduced_motion="no-preference")
    page.locator("#sphere-round").evaluate("one => { one.value = 6; one.dispatchEvent(new Event('input')); }")
    page.locator("#sphere-play").click()
    assert page.locator("#sphere-play").get_attribute("aria-pressed") == "true"
    page.wait_for_selector('#sphere-play[aria-pressed="false"]')
    assert page.locator("#sphere-shown").inner_text() == "8 of 8"


def test_the_choice_of_round_and_rule_changes_clients_and_classes(visit):
    page = visit()
    said = page.locator("#parts-clients figcaption p")
    assert "round 8" in said.inner_text()
    page.locator("#parts-round").focus()
    page.keyboard.press("ArrowLeft")
    assert not page.locator("#parts-reported").is_checked()
    assert "round 7" in said.inner_text()
    page.locator("#parts-rule").select_option("logits")
    assert "(logits, round 7)" in said.inner_text()
    page.locator("#parts-legend button").first.click()
    assert "protonorm" not in said.inner_text()


def test_the_legend_hides_lines_and_the_keyboard_reads_numbers(visit):
    page = visit()
    chart = page.locator('[data-chart="accuracy-logits"]')
    lines = chart.locator("path.line").count()
    page.locator('[data-group="accuracy"] .key').first.click()
    assert chart.locator("path.line").count() == lines - 1
    chart.locator("svg").focus()
    page.keyboard.press("End")
    assert "Round 8" in page.locator("#tip").inner_text()
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()


def test_the_keyboard_reads_gains_and_the_legend_hides_networks(visit):
    """Six clients with networks a and b by turns; the smallest is client 0."""
    page = visit()
    chart = page.locator('[data-gains="local"] figure', has_text="fedproto against local")
    assert chart.locator(".mark").count() == 6
    chart.locator("svg").focus()
    page.keyboard.press("Home")
    told = page.locator("#tip").inner_text()
    assert "client 0" in told
    assert "+0.00 points" in told
    page.keyboard.press("Escape")
    page.locator('[data-gains="local"] .key', has_text="b").click()
    assert chart.locator(".mark").count() == 3
    chart.locator("summary").click()
    chart.locator("tbody tr").first.wait_for()  # the table is made a moment after it is opened
    assert chart.locator("tbody tr").count() == 6


def test_gains_are_drawn_on_one_scale_or_each_on_its_own(visit):
    """Against Local fedproto gains nothing; fedtgp, stopped in round 3 of 8, loses (8 − 3)/9 of its samples."""
    page = visit()
    lowest = page.locator('[data-gains="local"] figure', has_text="fedproto against local").locator("svg text")
    before = lowest.all_text_contents()
    page.get_by_label("the same scale in all charts").uncheck()
    assert "−50" in before
    assert "−50" not in lowest.all_text_contents()


def test_twenty_methods_with_equal_numbers_can_be_told_apart(visit, tmp_path):
    """All have the same accuracies: every marker of a client stands elsewhere, and rings have different sizes."""
    methods = [made(tmp_path / f"m{n}", method={"name": f"m{n}"}, classes=2, rounds=4) for n in range(20)]
    page = visit(write_page(methods, tmp_path / "one.html").as_uri())
    marks = page.locator("#parts-clients .mark")
    assert marks.count() == 4 * 20
    places = {(round(box["x"]), round(box["y"])) for box in (mark.bounding_box() for mark in marks.all())}
    assert len(places) == 4 * 20
    rings = page.locator('[data-chart="accuracy-nearest-global"] circle.reported')
    assert len({ring.get_attribute("r") for ring in rings.all()}) == 7
    colour = "one => getComputedStyle(one).stroke + getComputedStyle(one).strokeDasharray"
    lines = page.locator('[data-chart="accuracy-nearest-global"] path.line')
    assert len({line.evaluate(colour) for line in lines.all()}) == 20
    keys = page.locator('[data-group="accuracy"] .key svg .mark')
    looks = {key.get_attribute("class") for key in keys.all()}
    assert len(looks) == 20


def test_points_of_gains_in_one_place_are_moved_apart(visit, tmp_path):
    """Three clients with 100 samples that gain nothing."""
    common = {"clients": 3, "classes": 1, "rounds": 1, "population": hundred(3), "tested": [[50, 50, 50]]}
    runs = [
        made(tmp_path / name, method={"name": name}, client_names=["a", "b", "c"], **common) for name in ("x", "local")
    ]
    page = visit(write_page(runs, tmp_path / "one.html").as_uri())
    marks = page.locator('[data-gains="local"] .case')
    assert len({(box["x"], box["y"]) for box in (mark.bounding_box() for mark in marks.all())}) == 3
    page.locator('[data-gains="local"] figure svg[role="img"]').focus()
    page.keyboard.press("Home")
    assert page.locator("#tip b").inner_text() == "a"


def test_rings_are_where_the_reported_rounds_are(visit):
    """A ring for each seed of each method; a rule of which no seed is shown has none."""
    page = visit()
    rings = page.locator('[data-chart="accuracy-logits"] circle.reported')
    assert rings.count() == 5


def test_data_tables_hold_the_numbers(visit):
    """Client 0 of the records has 1 + 2 + … + 12 samples to train on, and as many to test on."""
    page = visit()
    figure = page.locator("#samples-map")
    figure.locator("summary").click()
    page.wait_for_selector("#samples-map tbody tr")
    rows = figure.locator("tbody tr")
    assert rows.count() == 12
    assert sum(int(row.locator("td").first.inner_text()) for row in rows.all()) == 2 * sum(range(13))
    page.locator("#sphere summary").click()
    page.wait_for_selector("#sphere tbody tr")
    assert page.locator("#sphere tbody tr").count() == 12


def test_dark_and_light_by_preference_and_by_button(visit):
    colour = "getComputedStyle(document.body).backgroundColor"
    light, dark = visit(color_scheme="light"), visit(color_scheme="dark")
    colours = light.evaluate(colour), dark.evaluate(colour)
    assert colours[0] != colours[1]
    assert dark.locator("#theme").get_attribute("aria-pressed") == "true"
    light.locator("#theme").click()
    assert light.evaluate(colour) == colours[1]
    assert light.locator("#theme").get_attribute("aria-pressed") == "true"


@pytest.mark.parametrize("width", [390, 320])
def test_a_narrow_page_does_not_scroll_sideways(visit, width):
    page = visit(viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert all(chart.bounding_box()["width"] <= width for chart in page.locator(".plot svg").all())


def test_the_tabulator_reaches_every_control_and_focus_can_be_seen(visit):
    page = visit()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    wanted = {"theme", "parts-rule", "parts-seed", "parts-order", "parts-reported", "parts-round", "samples-part"}
    wanted |= {"sphere-ball", "sphere-run", "sphere-round", "sphere-play", "sphere-labels", "left", "reset"}
    look = (
        "[document.activeElement.id || document.activeElement.dataset.turn || '', "
        "getComputedStyle(document.activeElement).outlineStyle]"
    )
    for _ in range(100):
        page.keyboard.press("Tab")
        identifier, outline = page.evaluate(look)
        wanted.discard(identifier)
        assert not identifier or outline != "none", identifier
        if not wanted:
            break
    assert not wanted


@pytest.mark.parametrize(
    "settings",
    [
        {"width": 2},
        {"classes": 2},
        {"done": 0},
        {"classes": 1, "clients": 1, "rounds": 1},
        {"evaluate_every": 2},
        {"evaluate_every": 9, "rounds": 9, "done": 2},  # nobody has been evaluated yet
        {"evaluated": [1, 3]},
        {"metrics": {}, "lost": {2: {3: "it is late"}}},
    ],
    ids=str,
)
def test_unusual_runs_are_drawn_without_complaint(visit, tmp_path, settings):
    page = visit(write_page([made(tmp_path / "run", **settings)], tmp_path / "one.html").as_uri())
    if "width" in settings:
        assert page.get_by_role("button", name="Turn left").is_disabled()
        assert "plane" in page.locator("#sphere-share").inner_text()
