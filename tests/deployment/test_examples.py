"""The example files for systemd and Docker Compose: their form, and that their commands are those there are."""

import configparser
import shutil
import subprocess
import sys

import pytest
import yaml

from protonorm.deployment.https.listener import SPARE, Limits
from tests.docs import commands
from tests.docs.pages import ROOT

FOLDER = ROOT / "examples" / "deploy"
UNITS = sorted(FOLDER.glob("*.service"))


def unit(path):
    found = configparser.ConfigParser(strict=True, interpolation=None)
    found.optionxform = str
    found.read_string(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_runs_a_command_that_there_is_and_little_else(path):
    service = unit(path)["Service"]
    program, *words = commands.words(service["ExecStart"])
    assert program == "/opt/protonorm/bin/protonorm"
    commands.check_words(["protonorm", *words])
    assert service["UMask"] == "0077"
    assert {service[name] for name in ("NoNewPrivileges", "ProtectHome", "PrivateTmp")} == {"yes"}
    assert service["Restart"] == "on-failure"
    assert int(service.get("LimitNOFILE", 0)) >= ("server" in path.name) * (Limits().open + 2 * SPARE)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not on this machine")
def test_systemd_finds_nothing_wrong_but_that_the_program_is_not_here():
    words = ["systemd-analyze", "verify", *map(str, UNITS)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if "protonorm" in line]
    assert all(line.endswith("bin/protonorm is not executable: No such file or directory") for line in said), said


def test_the_compose_file_has_the_published_form():
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*words, str(FOLDER / "compose.yaml")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_compose_file_has_a_server_and_clients_whose_commands_there_are():
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))["services"]
    assert list(services) == ["server", "north", "south"]
    for service in services.values():
        commands.check_words(["protonorm", *service["command"]])
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
    assert services["server"]["ulimits"]["nofile"] >= Limits().open + 2 * SPARE
    assert all("ports" not in services[name] for name in ("north", "south"))
