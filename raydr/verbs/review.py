"""``raydr review``: people decide on what judges doubt, on a page in their browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.noise.judges.people import People
from raydr.ops.review.desk import Desk
from raydr.ops.review.doubts import find_doubts, queue
from raydr.ops.review.server import listen, serve
from raydr.runtime.console import say, show_summary, warn
from raydr.stages.places import Places
from raydr.verbs.command import TrainSplit, takes_config

if TYPE_CHECKING:
    from raydr.noise.decisions import Decisions


@takes_config
def review(
    config: RunConfig,
    reviewer: str = "",
    order: Literal["worst", "informative"] = "worst",
    judges: Annotated[str, typer.Option(metavar="A,B")] = "",
    split: TrainSplit = "",
    limit: Annotated[int, typer.Option(min=1)] = 500,
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8765,
) -> Decisions:
    """Show pairs and candidates that judges doubt on a page of this machine, and keep what people decide.

    Opens what is there, and needs no Ray. Every decision is on disk before the page goes on. Ends with Ctrl-C.

    Args:
        reviewer: your name; the page asks for it if left out.
        order: what comes first: what is surest to be wrong, or what is most in doubt.
        judges: whose verdicts; one judge of pairs and one of candidates.
        limit: pairs and candidates in the list, at most.
        port: of this machine; any free one with 0.

    Returns:
        All that was decided, by whomever and whenever.

    Raises:
        ConfigError: the decisions would lie on an object store, or the port is taken.
        ArtifactError: no judge has said anything of the split.
    """
    from pathlib import Path
    from urllib.parse import urlencode

    places, split = Places.of(config.workdir), split or config.data.train_split
    people = config.judge.judge("people")
    assert isinstance(people, People)
    file = people.decisions(places.root.url)
    if "://" in file:
        raise ConfigError(f"decisions go into a local file, not to {file}: judge.judges=[{{name: people, file: FILE}}]")
    named = [name.strip() for name in judges.split(",") if name.strip()]
    doubts = find_doubts(places, split, [one.name for one in config.judge.judges], named)
    desk = Desk(Path(file), split, doubts, [], order)
    before = desk.decisions()
    if before.is_torn:
        warn(f"the last line of {file} has no end: it is no decision, and goes when the next is written")
    desk.queue = queue(places, doubts, split, order, before, limit)
    with listen(port) as bound:
        say(f"{len(desk.queue):,} pairs and candidates of {', '.join(one.name for one in doubts)}, {order} first")
        asked = f"?{urlencode({'reviewer': reviewer})}" if reviewer else ""
        say(f"open http://127.0.0.1:{bound.getsockname()[1]}/{asked} in a browser of this machine; Ctrl-C ends")
        serve(desk, bound)
    after = desk.decisions()
    written = {"lines written": len(after.lines) - len(before.lines), "decisions": len(after.standing())}
    show_summary("review", {**written, "at": file})
    for finding in desk.findings(after):
        say(f"  {finding}")
    if people not in config.judge.judges:
        say("  to train on what was decided, list people in judge.judges")
    return after
