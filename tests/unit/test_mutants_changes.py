# SPDX-License-Identifier: Apache-2.0
"""scripts/mutants: the changes that it makes to a line of C++ or Python, and the code that it leaves unchanged."""

import difflib
import re

import pytest
from testkit.mutants import cpp_changes, picks, python_changes
from testkit.places import ROOT

CPP = """\
#include "transport/lane.h"

#if defined(__aarch64__)
constexpr int kOnAnotherProcessor = 1 < 2;
#endif

namespace hvd {
// A comment: a < b && !c
/* another one:
   x == 1; */
static_assert(sizeof(int) == 4, "text");
constexpr auto kWait = std::chrono::seconds(5);
constexpr size_t kBlock = size_t{64} << 10;
enum class Kind : int { kOne = 1, kTwo = 2 };

class Thing {
 public:
  Thing(const Thing&) = delete;
  virtual int Of(int) const = 0;
  std::vector<int> values_;
  int count_ = 3;
};

Status Run(Thing* thing, const std::string& name) {
  char text[32];
  log_.Debug([&] { return Shown(thing->count_ + 1) && !name.empty(); });
  if (name.size() <= 7) return Status::Invalid("too short by " + std::to_string(7 - name.size()));
  const int* first = thing->values_.data();
  thing->Start(*first);
  head.store(1, std::memory_order_release);
  for (int i = 0; i < 9; ++i) {
    if (!Take(i)) continue;
    total += std::min(i, 5);
  }
  std::string label = "a" + name;
  std::string_view word = R"(x == 1)";
  devices_->Start(2);
  return ok == true ? Status::Ok() : Last(ready && done);
}
}  // namespace hvd
"""


PYTHON = '''\
"""A text: 1 < 2 and not 3."""

import os
from horovod.common import rules

LIMIT = 5
LARGE = 4096


@dataclass(frozen=True)
class Entry:
    size: "int | None" = 0
    times: dict[int, Literal[1]] = field(default_factory=dict)


def check(entry: Entry, name: str = "a < b") -> int:
    assert entry.size > 1
    # a comment: 1 + 1
    if entry.size is not None and not entry.times:
        raise ValueError(f"{entry.size + 1} is more than 2" + name)
    for time in entry.times:
        if time in (1, LIMIT):
            continue
        entry.total += time * 2
        entry.forget(time)
        log.debug("this %d", time + 1)
    return min(entry.size, 3) if name == "x" else True
'''


EVERY = [change for lines in picks.all_changes(ROOT).values() for found in lines for change in found]


def cpp(line: str) -> list[str]:
    """Return the mutants of this line of CPP."""
    return after("x.cc", cpp_changes.changes_in("x.cc", CPP), line)


def python(line: str) -> list[str]:
    return after("x.py", python_changes.changes_in("x.py", PYTHON), line)


def after(path: str, changes: picks.Lines, line: str) -> list[str]:
    return [change.after.strip() for found in changes for change in found if change.before.strip() == line]


def test_cpp_operators_change_what_stands_between_two_values() -> None:
    assert cpp("for (int i = 0; i < 9; ++i) {") == [
        "for (int i = 1; i < 9; ++i) {",
        "for (int i = 0; i <= 9; ++i) {",
        "for (int i = 0; i >= 9; ++i) {",
        "for (int i = 0; i < 10; ++i) {",
        "for (int i = 0; i < 8; ++i) {",
        "for (int i = 0; i < 9; --i) {",
    ]
    assert cpp("if (!Take(i)) continue;") == ["if (Take(i)) continue;", "if (!Take(i)) break;", ";"]
    assert "total -= std::min(i, 5);" in cpp("total += std::min(i, 5);")
    assert "total += std::max(i, 5);" in cpp("total += std::min(i, 5);")
    assert ";" in cpp("total += std::min(i, 5);")
    assert cpp("return ok == true ? Status::Ok() : Last(ready && done);") == [
        "return ok != true ? Status::Ok() : Last(ready && done);",
        "return ok == false ? Status::Ok() : Last(ready && done);",
        "return ok == true ? Status::Ok() : Last(ready || done);",
    ]


def test_a_statement_with_a_line_to_itself_is_deleted_and_a_declaration_is_not() -> None:
    assert cpp("thing->Start(*first);") == [";"]
    assert cpp("const int* first = thing->values_.data();") == []
    assert cpp("std::vector<int> values_;") == []
    assert cpp("Thing(const Thing&) = delete;") == []
    assert ";" not in cpp("int count_ = 3;")


@pytest.mark.parametrize(
    "line",
    [
        '#include "transport/lane.h"',
        "constexpr int kOnAnotherProcessor = 1 < 2;",
        "// A comment: a < b && !c",
        "x == 1; */",
        'static_assert(sizeof(int) == 4, "text");',
        "constexpr auto kWait = std::chrono::seconds(5);",
        "enum class Kind : int { kOne = 1, kTwo = 2 };",
        "virtual int Of(int) const = 0;",
        "char text[32];",
        "log_.Debug([&] { return Shown(thing->count_ + 1) && !name.empty(); });",
        'std::string label = "a" + name;',
        'std::string_view word = R"(x == 1)";',
        "devices_->Start(2);",
    ],
)
def test_these_lines_of_cpp_stay_as_they_are(line: str) -> None:
    assert line in [found.strip() for found in CPP.splitlines()]
    assert cpp(line) == []


def test_the_condition_of_an_error_is_changed_and_its_text_is_not() -> None:
    line = 'if (name.size() <= 7) return Status::Invalid("too short by " + std::to_string(7 - name.size()));'
    tail = line.partition(") return")[2]
    assert ";" in cpp(line)
    assert all(found == ";" or found.endswith(tail) for found in cpp(line))
    assert len(cpp(line)) == 5


def test_memory_orders_and_units_stay_as_they_are() -> None:
    found = cpp("head.store(1, std::memory_order_release);")
    assert len(found) == 3
    assert all("memory_order_release" in line or line == ";" for line in found)
    assert cpp("constexpr size_t kBlock = size_t{64} << 10;") == ["constexpr size_t kBlock = size_t{64} >> 10;"]


def test_python_operators() -> None:
    assert python("LIMIT = 5") == ["LIMIT = 6", "LIMIT = 4"]
    assert python("if entry.size is not None and not entry.times:") == [
        "if entry.size is not None or not entry.times:",
        "if entry.size is None and not entry.times:",
        "if entry.size is not None and entry.times:",
    ]
    assert python("if time in (1, LIMIT):") == [
        "if time not in (1, LIMIT):",
        "if time in (2, LIMIT):",
        "if time in (0, LIMIT):",
    ]
    assert python("continue") == ["break"]
    assert python("entry.total += time * 2") == [
        "entry.total -= time * 2",
        "pass",
        "entry.total += time // 2",
        "entry.total += time * 3",
        "entry.total += time * 1",
    ]
    assert python("entry.forget(time)") == ["pass"]
    assert {
        'return max(entry.size, 3) if name == "x" else True',
        'return min(entry.size, 3) if name == "x" else False',
    } <= set(python('return min(entry.size, 3) if name == "x" else True'))


@pytest.mark.parametrize(
    "line",
    [
        '"""A text: 1 < 2 and not 3."""',
        "LARGE = 4096",
        "@dataclass(frozen=True)",
        "times: dict[int, Literal[1]] = field(default_factory=dict)",
        'def check(entry: Entry, name: str = "a < b") -> int:',
        "assert entry.size > 1",
        "# a comment: 1 + 1",
        'log.debug("this %d", time + 1)',
    ],
)
def test_these_lines_of_python_stay_as_they_are(line: str) -> None:
    assert line in [found.strip() for found in PYTHON.splitlines()]
    assert python(line) == []


def test_of_an_exception_only_the_raising_itself_is_changed() -> None:
    assert python('raise ValueError(f"{entry.size + 1} is more than 2" + name)') == ["pass"]


def test_each_change_to_our_sources_changes_one_line() -> None:
    texts = {path: (ROOT / path).read_text() for path in {change.path for change in EVERY}}
    assert len(EVERY) > 5000
    for one in EVERY[::97]:
        lines, changed = texts[one.path].splitlines(), one.apply_to(texts[one.path]).splitlines()
        assert [line[2:] for line in difflib.ndiff(lines, changed) if line[:2] in ("- ", "+ ")] == [
            one.before,
            one.after,
        ]


def test_no_change_to_our_sources_touches_a_comment_or_a_text() -> None:
    literals = re.compile(r'"(?:\\.|[^"\\])*"|//.*|memory_order_\w+')
    for one in EVERY:
        if one.path.startswith("engine/") and one.operator != "deletion":
            assert literals.findall(one.before) == literals.findall(one.after)
            assert not re.match(r"\s*(#|//|static_assert)", one.before)


def test_changed_python_still_compiles() -> None:
    for one in [change for change in EVERY if change.path.endswith(".py")][::31]:
        compile(one.apply_to((ROOT / one.path).read_text()), one.path, "exec")


def test_lines_with_the_same_text_are_told_apart() -> None:
    found = cpp_changes.changes_in("x.cc", "void F() {\n  a = b == c;\n  a = b == c;\n}\n")
    assert [line[0].key.occurrence for line in found] == [1, 2]
