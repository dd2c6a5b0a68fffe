"""The bookkeeping of open cells, without a kernel."""

from __future__ import annotations

import random

from jupyter_affinode.server.cells import REMEMBERED_CLOSED, OpenCells


def test_a_later_execution_closes_one_whose_end_was_lost():
    cells = OpenCells()
    cells.opened("a")
    cells.opened("b")
    assert cells.current == "b"
    cells.closed("b")
    assert cells.current is None


def test_output_of_a_closed_cell_does_not_open_it_again():
    cells = OpenCells()
    cells.opened("a")
    cells.closed("a")
    assert not cells.opened("a")
    assert cells.current is None


def test_output_opens_a_cell_whose_busy_was_lost():
    cells = OpenCells()
    assert cells.opened("a")
    assert not cells.opened("a")
    assert cells.current == "a"


def test_an_answer_closes_what_was_open_when_the_question_was_sent_and_nothing_later():
    cells = OpenCells()
    cells.opened("a")
    asked = cells.subshells()[None]
    cells.closed("a")
    cells.opened("b")
    assert not cells.answered(asked)
    assert cells.current == "b"
    assert cells.answered(cells.subshells()[None])
    assert cells.current is None


def test_memory_does_not_grow_with_the_number_of_cells():
    cells = OpenCells()
    for number in range(5 * REMEMBERED_CLOSED):
        cells.opened(str(number))
        cells.closed(str(number))
    assert len(cells._closed) == REMEMBERED_CLOSED and not cells._open


def test_a_kernel_that_has_finished_is_never_left_open_however_many_messages_are_lost():
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(200):
        cells = OpenCells()
        for number in range(20):
            for event in (cells.opened, cells.opened, cells.closed):
                if chance.random() < 0.7:
                    event(str(number))
        for asked in cells.subshells().values():
            cells.answered(asked)
        assert cells.current is None
