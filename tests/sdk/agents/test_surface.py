"""What the package shows."""

import ast
from pathlib import Path

from leasebeat import agents


def test_the_public_names_are_sorted_and_complete() -> None:
    tree = ast.parse(Path(agents.__file__).read_text())
    imported = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert sorted(agents.__all__) == agents.__all__
    assert set(agents.__all__) == imported
