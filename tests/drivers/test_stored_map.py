from __future__ import annotations

import copy
import pickle

from taskharbor.drivers.stored_map import StoredMap


def test_a_stored_map_equals_its_entries_and_is_decoded_once() -> None:
    found = StoredMap('{"tenant": "äöü"}')

    assert found == {"tenant": "äöü"} == found
    assert (found["tenant"], [*found], len(found), repr(found)) == ("äöü", ["tenant"], 1, "{'tenant': 'äöü'}")
    assert found._entries() is found._entries()  # noqa: SLF001  what it keeps


def test_a_stored_map_is_merged_and_copied_as_other_maps() -> None:
    found = StoredMap('{"tenant": "acme"}')

    assert found | {"tenant": "other", "more": "1"} == {"tenant": "other", "more": "1"}
    assert {"tenant": "other", "more": "1"} | found == {"tenant": "acme", "more": "1"}
    assert copy.copy(found) == copy.deepcopy(found) == pickle.loads(pickle.dumps(found)) == found
