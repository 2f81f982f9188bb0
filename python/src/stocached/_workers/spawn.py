"""What worker processes are sent, and import, that are not forked."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator


@contextlib.contextmanager
def explained(method: str, sent: str, parameter: str = "multiprocessing_context") -> Iterator[None]:
    """Around the start of a process by this method. An error of pickling says what is `sent`, and
    what to do. parameter: by which users choose the method."""
    try:
        yield
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if method == "fork":
            raise
        raise type(error)(
            f"{error}: workers that are started by {method} are sent {sent} pickled, which lambdas and functions within functions cannot be; define them in a "
            f'module, or give {parameter}="fork"'
        ) from error


def imported_anew(method: str) -> str:
    """What may be wrong where a worker of this method ends before it has done anything."""
    return (
        f'workers that are started by {method} import the program anew, so what it does belongs under if __name__ == "__main__":, and what they need of a '
        'notebook into a module; or give multiprocessing_context="fork"'
    )
