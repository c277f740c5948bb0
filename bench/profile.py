"""A flame graph of the server under the beats of bar 1: `make profile`."""

import subprocess
import threading

from bench import ROOT
from bench.beats import Beats
from bench.world import serving, world

_TOOL = ROOT / ".bench" / "tools" / "bin" / "py-spy"
_GRAPH = ROOT / ".bench" / "beat.svg"
_SECONDS = 10


def main() -> None:
    with world() as bench, serving(bench.database()) as server:
        beats = Beats(bench, server)
        load = threading.Thread(target=beats.rate, args=(_SECONDS + 4,))
        load.start()
        command = [
            str(_TOOL),
            "record",
            "--pid",
            str(server.process.pid),
            "--duration",
            str(_SECONDS),
            "--rate",
            "200",
            "--output",
            str(_GRAPH),
        ]
        subprocess.run(command, check=True, timeout=_SECONDS + 60)
        load.join()
    print(f"the flame graph is in {_GRAPH}")


if __name__ == "__main__":
    main()
