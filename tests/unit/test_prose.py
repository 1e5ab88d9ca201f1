# SPDX-License-Identifier: Apache-2.0
"""scripts/check-prose: which passages and names it finds in Python and C++, and what it objects to."""

import subprocess
from pathlib import Path

import pytest
from testkit.prose import command, passages, rules

PYTHON = '''# SPDX-License-Identifier: Apache-2.0
"""Module of
two lines."""

# Comment of
# two lines.
import os  # beside code

# another one
# type: ignore
class Pool:
    """Pool."""

    def of(self):
        """Return it."""
        text = "# no comment"

        def near():
            pass

    async def lend(self):
        pass


def near():
    pass
'''
CPP = """// SPDX-License-Identifier: Apache-2.0
// Comment of
// two lines.
#pragma once
class Pool : public Base {
 public:
  Pool(int size);
  int Near() const;  // beside code
  template <class E>
  void Lend(E value) {
    for (int i = At(0); i < 2; ++i) Use("// no comment");
  }
  std::function<void()> field_;
#ifdef FLAG
  /* between directives */
#endif
};
int Pool::Near() const { return Other(); }
int Near() { return 0; }
"""


def test_passages_and_methods_of_python() -> None:
    found = sorted((passage.line, passage.text) for passage in passages.python_passages(PYTHON))
    assert found == [
        (2, "Module of two lines."),
        (5, "Comment of two lines."),
        (7, "beside code"),
        (9, "another one"),
        (12, "Pool."),
        (15, "Return it."),
    ]
    assert [(name.line, name.qualified) for name in passages.python_methods(PYTHON)] == [
        (14, "Pool.of"),
        (21, "Pool.lend"),
    ]


def test_passages_and_methods_of_cpp() -> None:
    found = [(passage.line, passage.text) for passage in passages.cpp_passages(CPP)]
    assert found == [(2, "Comment of two lines."), (8, "beside code"), (15, "between directives")]
    assert [(name.line, name.qualified) for name in passages.cpp_methods(CPP)] == [
        (8, "Pool::Near"),
        (10, "Pool::Lend"),
        (18, "Pool::Near"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Likewise for sets.",
        "The same with a group.",
        "of a tensor",
        "For what the leader sends.",
        "Who waits here is woken.",
        "Whether the peer is there.",
        "As above.",
        "Kept for ever.",
        "Nobody reads this.",
        "A rank leaves of its own accord.",
    ],
)
def test_passages_that_are_refused(text: str) -> None:
    assert len(rules.faults_of_passage(text)) == 1


@pytest.mark.parametrize(
    "text", ["Offset of a tensor.", "Whoops.", 'Return the account called "nobody".', "Pass `for ever`.", "Sameness."]
)
def test_passages_that_are_accepted(text: str) -> None:
    assert rules.faults_of_passage(text) == []


def test_names() -> None:
    assert all(rules.fault_of_name(name) for name in ("Of", "_near", "plain", "Mine", "close_knit", "__alone"))
    assert not any(
        rules.fault_of_name(name) for name in ("lend", "empty", "ready", "is_near", "__all__", "at", "Offer")
    )


def test_exceptions_only_shrink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    exceptions = tmp_path / "name_exceptions.txt"
    exceptions.write_text("# Methods.\nPool.gone\nPool.of\n")
    monkeypatch.setattr(rules, "EXCEPTIONS", exceptions)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "pool.py").write_text(PYTHON)

    assert command.check(tmp_path) == 1
    assert capsys.readouterr().out.splitlines() == [
        "name_exceptions.txt: no method is called Pool.gone: scripts/check-prose --write"
    ]
    assert command.check(tmp_path, write=True) == 0
    assert exceptions.read_text() == "# Methods.\nPool.of\n"
    assert command.check(tmp_path) == 0

    (tmp_path / "src" / "pool.py").write_text(PYTHON + "# Nobody reads this.\n")
    assert command.check(tmp_path) == 1
    assert capsys.readouterr().out.startswith("src/pool.py:27: 'Nobody reads this.' contains 'Nobody'")
