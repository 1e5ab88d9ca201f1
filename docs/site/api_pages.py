# SPDX-License-Identifier: Apache-2.0
"""The API's pages, made from the sources alone: no framework, and not the package itself, is imported."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

from api_names import Found, Sources
from api_text import body

MODULES = {
    "horovod": "The version, and `run`, which starts a job from Python.",
    "horovod.torch": "PyTorch. Guide: [PyTorch](../../pytorch.md).",
    "horovod.tensorflow": "TensorFlow. Guide: [TensorFlow](../../tensorflow.md).",
    "horovod.keras": "Keras 3 and Keras 2. Guide: [Keras](../../keras.md).",
    "horovod.jax": "JAX. Guide: [JAX](../../jax.md).",
    "horovod.mxnet": "MXNet. Guide: [MXNet](../../mxnet.md).",
    "horovod.numpy": "NumPy arrays. Guide: [NumPy](../../numpy.md).",
    "horovod.data": "Loaders that load ahead. Guide: [data](../../guides/data.md).",
    "horovod.ray": "Ray. Guide: [Ray](../../ray.md).",
}
ELASTIC = ["horovod.torch", "horovod.tensorflow", "horovod.keras", "horovod.jax", "horovod.numpy"]
SHARED = "horovod.common.door"
_INDEX = """\
# API

Made from the docstrings in the sources. `hvd` stands for the API that a program imports, for example
`import horovod.torch as hvd`. Comments in examples show results of a job with two ranks.

"""
_SHARED_TITLE = """\
# Shared by all APIs

Every API has these names: `hvd.rank()` is `horovod.torch.rank()`, `horovod.jax.rank()` and so on. `horovod.data` and
`horovod.ray` do not have them.

"""


def write_pages(package: Path, folder: Path) -> None:
    """Write the pages of all modules into a folder; leave a file as it is if its text has not changed."""
    sources = Sources(package)
    folder.mkdir(parents=True, exist_ok=True)
    pages = {"shared": _SHARED_TITLE + _entries(sources, SHARED, sources.public(SHARED))}
    for module, text in MODULES.items():
        pages[module.rpartition(".")[2]] = _page(sources, module, text)
    pages["elastic"] = _elastic(sources)
    rows = [f"- [`{module}`]({module.rpartition('.')[2]}.md): {text}" for module, text in MODULES.items()]
    rows.insert(0, "- [Shared by all APIs](shared.md): `init`, `rank`, `size`, process sets, reductions, errors.")
    rows.append("- [`elastic`](elastic.md): `hvd.elastic` of each API.")
    tree = ["", "```{toctree}", ":hidden:", "", *(["shared", *sorted({*pages} - {"shared"})]), "```", ""]
    pages["index"] = _INDEX + "\n".join(rows + tree)
    for name, text in pages.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _page(sources: Sources, module: str, text: str) -> str:
    """Return the page of a module: a list of its names, then each name that is its own."""
    names = sources.public(module)
    shared = set(sources.public(SHARED))
    own = [name for name in names if name not in shared or _is_replaced(sources, module, name)]
    taken = [name for name in names if name not in own]
    page = f"# {module}\n\n{text}\n\n"
    if taken:
        links = ", ".join(f"[`{name}`](shared.md#{_anchor(SHARED, name)})" for name in taken)
        page += f"It also has the names that all APIs [share](shared.md): {links}.\n\n"
    return page + _entries(sources, module, own)


def _is_replaced(sources: Sources, module: str, name: str) -> bool:
    """Return True if a module defines a name that all APIs share anew."""
    return sources.find(module, name) != sources.find(SHARED, name)


def _elastic(sources: Sources) -> str:
    page = "# elastic\n\nGuide: [elastic training](../../elastic.md). `hvd.elastic` of each API:\n\n"
    for module in ELASTIC:
        name = f"{module}.elastic"
        page += f"## {name}\n\n" + _entries(sources, name, sources.public(name))
    return page


def _entries(sources: Sources, module: str, names: list[str]) -> str:
    return "\n".join(_entry(sources, module, name) for name in names)


def _anchor(module: str, name: str) -> str:
    return f"{_shown(module)}.{name}"


def _shown(module: str) -> str:
    return "hvd" if module == SHARED else module


def _entry(sources: Sources, module: str, name: str) -> str:
    """Return the directive that documents one name."""
    found = sources.find(module, name)
    if found is None:
        text = "The version of the package." if name == "__version__" else "Defined when the module is imported."
        return _directive("data", module, name, text)
    if found.submodule:
        text = "A module of its own."
        if name == "elastic":
            text = f"A module of its own: [its names](elastic.md#{found.submodule.replace('.', '')})."
        return _directive("data", module, name, text)
    if isinstance(found.node, ast.FunctionDef):
        return _directive("function", module, name + _signature(found), body(ast.get_docstring(found.node)))
    if isinstance(found.node, ast.ClassDef):
        return _class(sources, module, name, found)
    return _directive("data", module, name, _constant(sources, found, name))


def _constant(sources: Sources, found: Found, name: str) -> str:
    """Return the comment above or behind an assignment, else the value if it is short."""
    path = sources.path(found.module)
    assert path is not None
    for line in path.read_text(encoding="utf-8").splitlines():
        if re.match(rf"{name}\b.*=", line) and "  # " in line and "type:" not in line and "noqa" not in line:
            return line.rpartition("  # ")[2]
    return {"global_process_set": "The process set of all ranks."}.get(name, "A value that operations take.")


def _class(sources: Sources, module: str, name: str, found: Found) -> str:
    start = sources.member(found, "__init__")
    node = found.node
    assert isinstance(node, ast.ClassDef)
    text = body(ast.get_docstring(node))
    for method, definitions in sorted(sources.methods(found).items()):
        texts = [ast.get_docstring(one.node) for _, one in definitions if isinstance(one.node, ast.FunctionDef)]
        shown = method + _signature(definitions[0][1])
        text += "\n\n" + _directive("method", "", shown, body(next(filter(None, texts), None)))
    fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and not _name(one.target).startswith("_")]
    if start is None and fields and any("dataclass" in ast.unparse(one) for one in node.decorator_list):
        shown = "(" + ", ".join(ast.unparse(one).replace(" = ", "=") for one in fields) + ")"
        return _directive("class", module, name + shown, text, colons=5)
    return _directive("class", module, name + (_signature(start, False) if start else ""), text, colons=5)


def _name(target: ast.expr) -> str:
    return target.id if isinstance(target, ast.Name) else ""


def _signature(found: Found, with_result: bool = True) -> str:
    node = found.node
    assert isinstance(node, ast.FunctionDef)
    arguments = ast.parse(ast.unparse(node)).body[0].args  # type: ignore[attr-defined]
    if found.is_method:
        (arguments.posonlyargs or arguments.args)[:1] = []
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None and with_result else ""
    return f"({ast.unparse(arguments)}){result}"


def _directive(kind: str, module: str, signature: str, text: str, colons: int = 4) -> str:
    fence = ":" * colons
    head = [f"{fence}{{py:{kind}}} {signature}"]
    if module:
        head += [f":module: {_shown(module)}"]
    return "\n".join([*head, "", textwrap.dedent(text).strip() or "No description yet.", fence, ""])
