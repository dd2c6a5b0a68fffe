"""No number on a command line or in a setting is so absurd that it is taken."""

from __future__ import annotations

import argparse
import math

import pytest
from traitlets import TraitError
from traitlets.config import Config

from jupyter_affinode import cli
from jupyter_affinode.kernel.magics import parse_duration
from jupyter_affinode.node.app import NodeController
from jupyter_affinode.planner import workload
from jupyter_affinode.planner.model.sessions import ImpossiblePlan
from jupyter_affinode.planner.workload import LONGEST_S, Spread, Workload
from jupyter_affinode.settings.declaration import SettingsRefused
from jupyter_affinode.settings.policy import SETTINGS, Settings
from jupyter_affinode.units import number, whole

ABSURD = ["nan", "inf", "-inf", "1e300", "9" * 400, "9" * 5000, "-1e9", "", "many"]


def options(parser, words=()):
    """Every option of every command that its text is made something else of: (the words before it, its action)."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield from options(command, (*words, name))
        elif callable(action.type) and action.type.__name__ != "Path":
            yield words, action


OPTIONS = list(options(cli._parser()))


def test_no_option_takes_any_number_whatever():
    assert len(OPTIONS) > 25
    assert [action.dest for _, action in OPTIONS if action.type in (int, float)] == []


@pytest.mark.parametrize(
    ("words", "option"), [(words, (*action.option_strings, action.metavar)[0]) for words, action in OPTIONS]
)
def test_every_option_that_is_a_number_refuses_absurd_ones_by_name(words, option, capsys):
    for text in ABSURD:
        with pytest.raises(SystemExit) as ended:
            cli.main([*words, f"{option}={text}"] if option.startswith("-") else [*words, "--", text])
        last = capsys.readouterr().err.splitlines()[-1]
        assert ended.value.code == 2 and f"argument {option}" in last, (text, last)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpus", "0"], "--gpus: must be a whole number from 1 to 1024, not '0'"),
        (["--gpus", "1.5"], "--gpus: must be a whole number from 1 to 1024, not '1.5'"),
        (["--gpu-memory=-1"], "--gpu-memory: must be a number from 0 to 1e+06, not '-1'"),
        (["--run", "1e300"], "--run: must be a number from 0.001 to 604800, not '1e300'"),
        (["--run", "1,1000"], "--run: the 75th percentile must be from 1 to 10 times the median"),
        (["--compute-share", "0"], "--compute-share: must be a number more than 0 and at most 1, not '0'"),
        (["--users", "0"], "--users: must be a whole number from 1 to 100000, not '0'"),
        (["--busy-users", "2"], "--busy-users: must be a number from 0 to 1, not '2'"),
        (["--search", "-1"], "--search: must be a number from 0 to 604800, not '-1'"),
        (["--days", "9" * 60], f"--days: must be a whole number from 1 to 366, not '{'9' * 40}…'"),
    ],
)
def test_the_refusal_names_the_bounds(arguments, words, capsys):
    with pytest.raises(SystemExit):
        cli.main(["plan", *arguments])
    assert words in capsys.readouterr().err


def test_bounds_are_taken_themselves():
    assert number(0, 1)("0") == 0 and number(0, 1)("1") == 1 and whole(-5, 5)("-5") == -5
    for parse, text in ((number(0, 1, above=True), "0"), (whole(1, 2), "1.0"), (whole(1, 2), "1_0")):
        with pytest.raises(argparse.ArgumentTypeError):
            parse(text)


@pytest.mark.parametrize("caps", ["gpu_bytes=nan", "gpu_bytes=inf", "gpu_bytes=-1", "gpu_bytes=many"])
def test_a_grant_has_no_absurd_limits(caps, tmp_path, capsys):
    (tmp_path / "a.key").write_text("none")
    sign = ["grant", "sign", "--key", str(tmp_path / "a.key"), "--user", "alice", "--audience", "affinode:x"]
    assert cli.main([*sign, "--cap", caps]) == 1
    assert "--cap gpu_bytes must be a number from 0 to" in capsys.readouterr().err


NUMBERS = [name for name, setting in SETTINGS.items() if setting.kind in ("int", "float")]


@pytest.mark.parametrize("name", NUMBERS)
def test_every_setting_that_is_a_number_refuses_absurd_ones_by_name(name):
    assert len(NUMBERS) > 8
    for value in (math.nan, math.inf, -math.inf, 1e300, -1, -(10**400), 10**400, "5", True):
        with pytest.raises(
            SettingsRefused, match=f"^{name} must be a (whole )?number from .* to "
        ) as refused:
            Settings().changed(**{name: value})
        assert len(str(refused.value)) < 200


def test_turns_are_not_so_short_that_nothing_else_is_done():
    with pytest.raises(
        SettingsRefused, match=r"time_slice_s must be a number from 0.1 to 1e\+09, not 1e-300"
    ):
        Settings().changed(time_slice_s=1e-300)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("ledger_days", (math.nan, math.inf, -1.0, 1e300)),
        ("metrics_port", (-1, 65536)),
        ("api_port", (-1, 65536)),
    ],
)
def test_the_controllers_other_numbers_have_bounds(name, values):
    known = Settings().as_dict()
    numeric = {
        trait for trait, its in NodeController.class_traits(config=True).items()
        if its.__class__.__name__ in ("Int", "Float", "Integer") and trait not in known
    }  # fmt: skip
    assert numeric == {"ledger_days", "metrics_port", "api_port", "log_level"} - ({"log_level"} - numeric)
    for value in values:
        with pytest.raises(TraitError):
            NodeController(config=Config(NodeController={name: value}))


def test_a_hold_for_longer_than_a_life_is_cut_to_the_maximum():
    assert parse_duration(f"{'9' * 30}d") == 10**9
    with pytest.raises(ValueError):
        parse_duration(f"{'9' * 5000}h")


def test_a_plan_of_too_many_cells_is_refused_before_they_are_all_made(monkeypatch):
    monkeypatch.setattr(workload, "ALL_CELLS_MAX", 100)
    with pytest.raises(ImpossiblePlan, match="of 100000 users have more than 100 cells in 5 days"):
        Workload(users=100_000).sessions(1 << 37)


def test_no_cell_is_longer_than_a_month_whatever_the_tail():
    long = Spread(6e5, 6e5)
    made = Workload(
        40, 1, run_s=Spread(6e5, 6e6), break_s=long, busy_share=0.999, quiet_share=0.999, session_s=long
    )
    runs = [cell.gpu_s for session in made.sessions(1 << 37) for cell in session.cells]
    assert runs and max(runs) == LONGEST_S
