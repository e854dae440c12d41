"""What has to be made, and why; names that must not move by accident."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.things import make_all, thing
from raydr.artefacts.places import Places
from raydr.errors import FingerprintError
from raydr.pipeline.planning import Inventory, check_names, reason, required
from raydr.store.building import PLAN
from raydr.store.folder import Folder


@pytest.fixture
def inventory(tmp_path: Path) -> Inventory:
    return Inventory(Places(Folder(str(tmp_path))))


def labels(nodes):
    return [node.label for node in nodes]


def chain(x: int = 0, text: str = "a"):
    a = thing("a", text=text)
    b = thing("b", a, x=x)
    return a, b, thing("c", b)


def test_the_key_depends_on_settings_version_and_inputs_and_on_nothing_else():
    a = thing("a", x=1)
    assert a.key == thing("a", x=1, cpus=7, text="other").key
    assert a.key != thing("a", x=2).key
    assert a.key != thing("a", x=1, version=2).key
    assert thing("b", a).key != thing("b", thing("a", x=2)).key


def test_what_is_there_needs_nothing_and_a_change_makes_what_depends_on_it(inventory, tmp_path):
    a, b, c = chain()
    assert labels(required(inventory, [c])) == ["a", "b", "c"]
    make_all(tmp_path, a, b, c)
    assert required(inventory, [c]) == []
    changed = chain(x=2)
    assert labels(required(inventory, [changed[2]])) == ["b", "c"]


def test_inputs_of_a_finished_artefact_may_be_gone(inventory, tmp_path):
    a, b, c = chain()
    make_all(tmp_path, a, b, c)
    for node in (a, b):
        inventory.folder(node).remove()
    assert required(inventory, [c]) == []
    inventory.folder(c).remove()
    inventory.forget(c)
    assert labels(required(Inventory(inventory.places), [c])) == ["a", "b", "c"]


def test_what_stands_on_something_made_again_with_other_bytes_is_stale_and_says_so(inventory, tmp_path):
    a, b, c = chain(text="first")
    make_all(tmp_path, a, b, c)
    again = thing("a", text="second")
    assert again.key == a.key
    make_all(tmp_path, again)
    fresh = Inventory(inventory.places)
    assert [fresh.state(node) for node in (a, b, c)] == ["done", "stale", "stale"]
    assert labels(required(fresh, [c])) == ["b", "c"]
    assert reason(fresh, b, {}) == "a was made again"
    # Also where what lies between is gone.
    fresh.folder(b).remove()
    assert Inventory(inventory.places).state(c) == "stale"


def test_the_same_bytes_made_again_leave_the_others_alone(inventory, tmp_path):
    a, b, c = chain()
    make_all(tmp_path, a, b, c)
    make_all(tmp_path, a)
    assert required(Inventory(inventory.places), [c]) == []


def test_reasons(inventory, tmp_path):
    a, b, c = chain()
    make_all(tmp_path, a, b, names={"b": b})
    assert reason(inventory, c, {}) == "new"
    after = chain(x=3)[1]
    assert reason(inventory, after, {"b": after}) == "x was 0, is 3"
    inventory.folder(c).write_json(PLAN, c.identity.model_dump(mode="json"))
    assert reason(inventory, c, {}) == "was interrupted"
    assert reason(inventory, b, {}, again={b.key}) == "made again on request"


def test_asked_for_again_makes_what_is_asked_for_and_what_stands_on_it(inventory, tmp_path):
    a, b, c = chain()
    make_all(tmp_path, a, b, c)
    assert labels(required(inventory, [c], again={b.key})) == ["b", "c"]
    assert labels(required(inventory, [b], again={b.key})) == ["b"]


def test_a_name_does_not_move_by_accident(inventory, tmp_path):
    a, b, _ = chain()
    make_all(tmp_path, a, b, names={"models/b": b})
    check_names(inventory.places, {"models/b": b})
    other = chain(x=9)[1]
    with pytest.raises(FingerprintError, match=r"models/b: x was 0, is 9\n.*--again"):
        check_names(inventory.places, {"models/b": other})
    check_names(inventory.places, {"models/b": thing("b", a, x=9, moves=True)})


def test_only_what_differs_by_itself_is_named_as_the_cause(inventory, tmp_path):
    a, b, _ = chain()
    make_all(tmp_path, a, b, names={"a": a, "b": b})
    changed = thing("a", x=4, text="a")
    with pytest.raises(FingerprintError) as error:
        check_names(inventory.places, {"a": changed, "b": thing("b", changed)})
    assert "a: x was 0, is 4" in str(error.value)
    assert "b:" not in str(error.value)


def test_a_name_follows_inputs_whose_names_have_moved(inventory, tmp_path):
    a, b, c = chain()
    make_all(tmp_path, a, b, c, names={"a": a, "b": b, "c": c})
    changed = thing("a", x=4, text="a")
    make_all(tmp_path, changed, names={"a": changed})
    after = thing("b", changed)
    check_names(inventory.places, {"a": changed, "b": after, "c": thing("c", after)})
    with pytest.raises(FingerprintError, match="b: x was 0, is 9"):
        check_names(inventory.places, {"a": changed, "b": thing("b", changed, x=9)})
    # An input without a name follows as well: the margins of a model refused it after prepare --again.
    check_names(inventory.places, {"a": changed, "c": thing("c", after)})
    # Its setting is the cause that is named, and not "b changes".
    with pytest.raises(FingerprintError, match="c: x was 0, is 9"):
        check_names(inventory.places, {"a": changed, "c": thing("c", thing("b", changed, x=9))})
    # Without a name of its own nobody has agreed to the input.
    with pytest.raises(FingerprintError, match="b: x was 0, is 4"):
        check_names(inventory.places, {"b": after})
