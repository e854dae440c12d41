"""``raydr gc``: remove what no name reaches any more."""

from __future__ import annotations

from raydr.config.run import RunConfig
from raydr.graph.garbage import Garbage, find_garbage
from raydr.runtime.console import counted, say
from raydr.stages.places import Places
from raydr.verbs.command import takes_config


@takes_config
def gc(
    config: RunConfig,
    yes: bool = False,
) -> list[Garbage]:
    """List the artefacts that no name reaches, were set aside or were left unfinished, and remove them with --yes.

    Args:
        yes: remove them; without it they are only listed.
    """
    found = find_garbage(Places.of(config.workdir))
    for one in found:
        say(f"  {one.folder}: {one.num_bytes / 1e6:,.1f} MB, {one.why}")
        if yes:
            one.folder.remove()
    total = sum(one.num_bytes for one in found) / 1e6
    done = "removed" if yes else "--yes removes them"
    say(f"{counted(len(found), 'artefact')}, {total:,.1f} MB: {done}" if found else "nothing to remove")
    return found
