"""Runs `ebmcal` commands and prints, as JSON, what Python's audit hooks saw: unpickling, and looking for the network.

`python watched_run.py '[["run", ...], ...]'`; a command may also be {"remove": PATH}. Nothing is forbidden, only seen.
"""

import json
import shutil
import sys

seen: dict[str, set[str]] = {"unpickled": set(), "network": set()}


def watch(event: str, arguments: tuple) -> None:
    if event == "pickle.find_class":
        seen["unpickled"].add(".".join(map(str, arguments)))
    elif event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        seen["network"].add(f"{event} {arguments[-1] if event == 'socket.connect' else arguments[0]}")


if __name__ == "__main__":
    import full_disk
    from ebmcal.cli import main

    full_disk.make_quick()
    codes = []
    import torch  # noqa: F401  (what libraries do when they are imported is not ours)
    import transformers  # noqa: F401

    sys.addaudithook(watch)
    for command in json.loads(sys.argv[1]):
        if isinstance(command, dict):
            shutil.rmtree(command["remove"])
            continue
        try:
            main(command)
            codes.append(0)
        except SystemExit as stop:
            codes.append(stop.code or 0)
    print("\n" + json.dumps({name: sorted(found) for name, found in seen.items()} | {"codes": codes}))
