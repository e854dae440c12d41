"""Print the number of alive nodes of a Ray cluster whenever it changes, until killed: python watch_nodes.py ADDRESS."""

import sys
import time

import ray


def main(address: str) -> None:
    ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    last = -1
    while True:
        alive = sum(node["Alive"] for node in ray.nodes())
        if alive != last:
            print(alive, flush=True)  # noqa: T201
            last = alive
        time.sleep(0.3)


if __name__ == "__main__":
    main(sys.argv[1])
