# SPDX-License-Identifier: Apache-2.0
"""Names of the package found without importing it: what `__all__` lists, and where each name is defined."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

Definition: TypeAlias = ast.FunctionDef | ast.ClassDef | ast.expr


@dataclass(frozen=True)
class Found:
    """A definition: the module that holds it, and its node; no node for a name that the program computes.

    Args:
        module: its dotted name.
        node: a function, a class or a value.
        is_method: the function is called on an object, so that its first argument is not the caller's.
        submodule: the dotted name of the module that the name stands for, if it is one.
    """

    module: str
    node: Definition | None = None
    is_method: bool = False
    submodule: str = ""


class Sources:
    """The package's modules as syntax trees."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.tree = lru_cache(maxsize=None)(self._tree)

    def path(self, module: str) -> Path | None:
        """Return the file of a module, or None if the package has none of that name."""
        base = self._root.joinpath(*module.split("."))
        return next((path for path in (base / "__init__.py", base.with_suffix(".py")) if path.is_file()), None)

    def _tree(self, module: str) -> ast.Module | None:
        path = self.path(module)
        return ast.parse(path.read_text(encoding="utf-8")) if path is not None else None

    def public(self, module: str) -> list[str]:
        """Return the names in a module's `__all__`, those that it takes over from other modules included."""
        names: list[str] = []
        tree = self.tree(module)
        for node in tree.body if tree is not None else []:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(node, (ast.Assign, ast.AugAssign)) and getattr(target, "id", "") == "__all__":
                names += self._listed(module, node.value)
        return sorted(dict.fromkeys(names))

    def _listed(self, module: str, value: ast.expr) -> list[str]:
        if isinstance(value, ast.Attribute) and value.attr == "__all__" and isinstance(value.value, ast.Name):
            other = self.find(module, value.value.id)
            return self.public(other.submodule) if other is not None else []
        return list(ast.literal_eval(value))

    def find(self, module: str, name: str, depth: int = 0) -> Found | None:
        """Return the definition of a name of a module, through imports; None if there is none to be found."""
        tree = self.tree(module)
        if tree is None or depth > 12:
            return None
        starred: list[str] = []
        for node in _statements(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
                return Found(module, node)
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                if any(alias.name == "*" for alias in node.names):
                    starred.append(node.module)
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self._imported(node.module, alias.name, depth)
            if (value := _assigned(node, name)) is not None:
                return self._follow(module, value, depth) or Found(module, value)
        for other in reversed(starred):  # the last import counts
            if (found := self.find(other, name, depth + 1)) is not None:
                return found
        return None

    def _imported(self, module: str, name: str, depth: int) -> Found | None:
        if self.path(f"{module}.{name}") is not None:
            return Found(module, submodule=f"{module}.{name}")
        return self.find(module, name, depth + 1)

    def _follow(self, module: str, value: ast.expr, depth: int) -> Found | None:
        """Return what a value stands for, if it is another name, or a method of an object of our own classes."""
        if isinstance(value, ast.Name):
            return self.find(module, value.id, depth + 1)
        if isinstance(value, ast.Attribute):
            owner = self._class_of(module, value.value, depth + 1)
            return self.member(owner, value.attr, depth + 1) if owner is not None else None
        return None

    def _class_of(self, module: str, value: ast.expr, depth: int) -> Found | None:
        """Return the class of the object that an expression stands for."""
        if depth > 12:
            return None
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            found = self.find(module, value.func.id, depth + 1)
            return found if found is not None and isinstance(found.node, ast.ClassDef) else None
        if isinstance(value, ast.Name):
            found = self.find(module, value.id, depth + 1)
            if found is None or not isinstance(found.node, ast.expr):
                return None
            return self._class_of(found.module, found.node, depth + 1)
        if isinstance(value, ast.Attribute):
            owner = self._class_of(module, value.value, depth + 1)
            made = _made_in_init(owner.node, value.attr) if owner is not None else None
            return self._class_of(owner.module, made, depth + 1) if owner is not None and made is not None else None
        return None

    def member(self, owner: Found, name: str, depth: int = 0) -> Found | None:
        """Return a method of a class, or of a class that it inherits from."""
        if not isinstance(owner.node, ast.ClassDef) or depth > 12:
            return None
        for node in owner.node.body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return Found(owner.module, node, is_method=not _is_static(node))
        for base in self.bases(owner):
            if (found := self.member(base, name, depth + 1)) is not None:
                return found
        return None

    def bases(self, owner: Found) -> list[Found]:
        """Return the classes of this package that a class inherits from directly."""
        assert isinstance(owner.node, ast.ClassDef)
        named = [base.value if isinstance(base, ast.Subscript) else base for base in owner.node.bases]
        found = [self._named(owner.module, base) for base in named]
        return [one for one in found if one is not None and isinstance(one.node, ast.ClassDef)]

    def methods(self, owner: Found) -> dict[str, list[tuple[str, Found]]]:
        """Return the definitions of each public method of a class, and the class of each; its own come first."""
        named: dict[str, list[tuple[str, Found]]] = {}
        waiting = [owner]
        while waiting:
            one = waiting.pop(0)
            assert isinstance(one.node, ast.ClassDef)
            for node in one.node.body:
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and not _is_variant(node):
                    found = Found(one.module, node, is_method=not _is_static(node))
                    named.setdefault(node.name, []).append((one.node.name, found))
            waiting += self.bases(one)
        return named

    def _named(self, module: str, value: ast.expr) -> Found | None:
        """Return the definition that `name`, or `name` of a module of this package, stands for."""
        if isinstance(value, ast.Name):
            return self.find(module, value.id)
        if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):
            other = self.find(module, value.value.id)
            return self.find(other.submodule, value.attr) if other is not None and other.submodule else None
        return None


def _statements(tree: ast.Module) -> list[ast.stmt]:
    """Return the statements of a module, those below `if` and `try` included."""
    found: list[ast.stmt] = []
    for node in tree.body:
        found.append(node)
        if isinstance(node, (ast.If, ast.Try)):
            found += [*node.body, *node.orelse]
    return found


def _assigned(node: ast.stmt, name: str) -> ast.expr | None:
    if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == name for target in node.targets):
        return node.value
    if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == name:
        return node.value
    return None


def _made_in_init(owner: Definition | None, attribute: str) -> ast.expr | None:
    """Return the value that a class's `__init__` gives to an attribute of `self`."""
    for node in ast.walk(owner) if owner is not None else ():
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Attribute) and target.attr == attribute for target in targets):
            value = getattr(node, "value", None)
            return value if isinstance(value, ast.expr) else None
    return None


def _is_static(node: ast.FunctionDef) -> bool:
    return any(getattr(decorator, "id", "") == "staticmethod" for decorator in node.decorator_list)


def _is_variant(node: ast.FunctionDef) -> bool:
    """Return True for a property's setter, and for an overload that only describes types."""
    return any(ast.unparse(one).endswith((".setter", "overload")) for one in node.decorator_list)
