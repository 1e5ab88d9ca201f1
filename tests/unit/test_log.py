# SPDX-License-Identifier: Apache-2.0
"""The "horovod" logger: levels, lines formatted like the engine's, and precedence of the user's configuration."""

import logging
import re
from collections.abc import Iterator

import pytest

from horovod.common import context, log, settings

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[3\] \[horovod\] WARNING: careful\n")


def _is_of_pytest(handler: logging.Handler) -> bool:
    return type(handler).__module__.startswith("_pytest")


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Reset logging to an unconfigured state before the test; restore it afterwards."""
    root, ours = logging.getLogger(), log.logger
    before = ours.handlers[:], ours.level, log._our_level
    ours.handlers[:] = []
    ours.setLevel(logging.NOTSET)
    log._our_level = logging.NOTSET
    log._told.clear()
    yield
    root.handlers[:] = [handler for handler in root.handlers if _is_of_pytest(handler)]
    ours.handlers[:], level, log._our_level = before
    ours.setLevel(level)


def begin(rank: int = 3, **environ: str) -> None:
    root = logging.getLogger()
    root.handlers[:] = [handler for handler in root.handlers if not _is_of_pytest(handler)]
    log.begin(settings.load({f"HOROVOD_{name}": value for name, value in environ.items()}), rank)


def test_warnings_by_default_to_stderr_with_rank_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    begin()
    logging.getLogger("horovod.common.anything").warning("%sful", "care")
    log.logger.info("not this")
    shown = capsys.readouterr()
    assert LINE.fullmatch(shown.err), shown.err
    assert shown.out == ""


@pytest.mark.parametrize("level", ["trace", "debug", "INFO", "warning", "error", "Fatal"])
def test_each_level_lets_through_itself_and_what_is_worse(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    begin(LOG_LEVEL=level, LOG_HIDE_TIME="1")
    capsys.readouterr()
    for number in log.LEVELS.values():
        log.logger.log(number, "x")
    names = [name.upper() for name in log.LEVELS]
    expected = [f"[3] [horovod] {name}: x" for name in names[names.index(level.upper()) :]]
    shown = capsys.readouterr()
    assert (shown.out + shown.err).splitlines() == expected
    assert all("INFO" in line or "DEBUG" in line or "TRACE" in line for line in shown.out.splitlines())
    assert not re.search("INFO|DEBUG|TRACE", shown.err)


def test_a_traceback_follows_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    begin(LOG_HIDE_TIME="1")
    try:
        raise KeyError("y")
    except KeyError:
        log.logger.exception("x")
    assert re.fullmatch(r"\[3\] \[horovod\] ERROR: x\nTraceback .*KeyError: 'y'\n", capsys.readouterr().err, re.DOTALL)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("where", ["", "horovod"])
def test_a_users_handler_gets_every_line_alone(where: str, early: bool, capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    if early:
        logging.getLogger(where).addHandler(handler)
        begin()
    else:
        begin()
        logging.getLogger(where).addHandler(handler)
    log.logger.warning("once")
    shown = capsys.readouterr()
    assert (heard, shown.out, shown.err) == (["once"], "", "")


def test_a_users_levels_win() -> None:
    log.logger.setLevel(logging.ERROR)
    begin(LOG_LEVEL="trace")
    assert log.logger.level == logging.ERROR
    log.logger.setLevel(logging.NOTSET)
    logging.getLogger().addHandler(logging.NullHandler())
    begin()
    assert log.logger.level == logging.NOTSET, "that of the root logger"
    begin(LOG_LEVEL="info")
    assert log.logger.level == logging.INFO, "asked for by name"


def test_a_later_world_has_its_own_rank_and_level(capsys: pytest.CaptureFixture[str]) -> None:
    begin(LOG_LEVEL="error")
    begin(rank=5, LOG_HIDE_TIME="1")
    log.logger.warning("x")
    assert capsys.readouterr().err == "[5] [horovod] WARNING: x\n"


def test_rank_0_says_once_what_has_no_effect(capsys: pytest.CaptureFixture[str]) -> None:
    given = {"TORUS_ALLREDUCE": "1", "NUM_NCCL_STREAMS": "2", "CONTROLLER": "GLOO", "CCL_CACHE": "0"}
    begin(1, **given)
    assert capsys.readouterr().err == ""
    for _ in range(2):
        begin(0, LOG_HIDE_TIME="1", **given)
    assert capsys.readouterr().err.splitlines() == [
        f"[0] [horovod] WARNING: {name} is set: it is accepted, but has no effect in this version"
        for name in ("HOROVOD_TORUS_ALLREDUCE", "HOROVOD_NUM_NCCL_STREAMS")
    ]
    begin(0, LOG_LEVEL="error", CCL_CACHE="1")
    assert capsys.readouterr().err == ""


def test_a_process_without_a_launcher_says_once_that_it_is_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_LOG_LEVEL", "info")
    monkeypatch.setenv("HOROVOD_LOG_HIDE_TIME", "1")
    begin(0, LOG_LEVEL="info")
    for _ in range(2):
        world = context.Context()
        world.init()
        world.shutdown()
    shown = [line for line in capsys.readouterr().out.splitlines() if "launcher" in line]
    assert shown == [
        "[0] [horovod] INFO: no launcher started this process: it trains alone. "
        "For several ranks: horovodrun -np 2 python train.py"
    ]
