import sys
from pathlib import Path

import pytest

from protonorm.config import kinds as module
from protonorm.config.kinds import bundled


def test_the_checkout_has_its_experiments():
    found = bundled("experiments")
    assert Path(found.__file__).parent.name == "experiments"
    assert "table1" in found.NAMES


def test_what_is_nowhere_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match="'nothing' is neither in"):
        bundled("nothing")


def test_an_installed_package_has_them_inside(tmp_path, monkeypatch):
    """A wheel lays `experiments` into the package; then no path is added."""
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "__init__.py").write_text("NAMES = ('mine',)\n")
    import protonorm

    monkeypatch.setattr(protonorm, "__path__", [*protonorm.__path__, str(tmp_path)])
    before = list(sys.path)
    assert bundled("inside").NAMES == ("mine",)
    assert sys.path == before
    monkeypatch.delitem(sys.modules, "protonorm.inside")


def test_outside_a_checkout_nothing_beside_the_package_is_imported(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PACKAGE", tmp_path / "site-packages" / "protonorm")
    with pytest.raises(ValueError, match="install the package again"):
        bundled("experiments")
