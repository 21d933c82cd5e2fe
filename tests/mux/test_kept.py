"""Properties that are found once."""

from rollmux.mux.kept import kept


class Thing:
    """Something that counts how often it is looked into."""

    looks = 0

    @kept
    def found(self) -> int:
        """What is found."""
        self.looks += 1
        return self.looks


def test_it_is_found_when_it_is_first_asked_for_and_once() -> None:
    thing, other = Thing(), Thing()
    assert thing.looks == 0
    assert (thing.found, thing.found, thing.looks) == (1, 1, 1)
    assert other.found == 1


def test_what_is_put_there_beforehand_is_what_is_found() -> None:
    thing = Thing()
    thing.__dict__["found"] = 7
    assert (thing.found, thing.looks) == (7, 0)


def test_the_class_tells_what_it_is() -> None:
    assert Thing.found.__doc__ == "What is found."
