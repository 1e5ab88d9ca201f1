# SPDX-License-Identifier: Apache-2.0
"""Run the examples in the docstrings of an API's public names, in the ranks of a world of two."""

import ast
import contextlib
import io
import re
import time
from collections.abc import Collection
from typing import Any

from testkit.docstrings.tables import NAMES

# Names whose examples do not run in a world that other tests use too.
NOT_RUN = {
    "shutdown": "ends the world",
    "start_timeline": "needs HOROVOD_TIMELINE",
    "stop_timeline": "needs HOROVOD_TIMELINE",
}
_RESULT = re.compile(r"  # on (?:2 ranks|rank (\d) of 2): (.*)$")


def example_in(docstring: str | None) -> list[str]:
    """Return the lines of an example without `>>>`."""
    _, _, example = (docstring or "").partition("Example:\n")
    return [line.strip()[4:] for line in example.splitlines() if line.strip().startswith((">>>", "..."))]


def run_examples(hvd: Any, modules: list[Any], leave_out: Collection[str] = (), **scope: Any) -> list[str]:
    """Run the example of each public name of some modules, and return what went wrong on this rank.

    Args:
        hvd: What the examples call hvd.
        modules: The modules that have the names.
        leave_out: Names whose examples are those of another API.
        scope: Other names in the examples.
    """
    problems = []
    for module in modules:
        names = NAMES.get(module.__name__) or module.__all__
        for name in sorted({*names} - {*NOT_RUN, *leave_out}):
            value = getattr(module, name)
            lines = example_in(value.__doc__) if callable(value) else []
            where = f"rank {hvd.rank()}, {module.__name__}.{name}"
            if lines and (problem := problem_of(lines, {"hvd": hvd, "time": time, **scope}, hvd.rank())):
                problems.append(f"{where}: {problem}")
            elif callable(value) and not lines:
                problems.append(f"{where} has no example")
    return problems


def problem_of(lines: list[str], scope: dict[str, Any], rank: int) -> str:
    """Return what is wrong with an example: its error, or a result that differs from its comment."""
    body = ast.parse("\n".join(lines)).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(ast.Module(body, []), "<example>", "exec"), scope)
            result = eval(compile(ast.Expression(last.value), "<example>", "eval"), scope) if last else None
    except Exception as error:
        return f"{lines} raised {error!r}"
    promised = _RESULT.search(lines[-1])
    if promised and promised[1] in (None, str(rank)) and repr(result) != promised[2]:
        return f"{lines} gave {result!r}"
    return ""
