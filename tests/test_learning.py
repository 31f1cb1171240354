import pytest
import torch

import protonorm as pn
from protonorm.learning import descend, pairs, shuffled
from tests.algorithms.test_protonorm import reply, server


def test_pairs_stand_in_the_order_of_the_replies():
    vectors, labels = pairs([reply([2, 0], [[1, 2], [3, 4]]), reply([2], [[5, 6]])], server())
    assert vectors.tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    assert labels.tolist() == [2, 0, 2]


def test_nobody_sends_no_pairs():
    vectors, labels = pairs([], server())
    assert vectors.shape == (0, 2)
    assert list(shuffled(vectors, labels, 3, 4)) == []


def test_every_epoch_has_all_rows_once_and_the_last_batch_may_be_smaller():
    vectors, labels = torch.arange(5.0).unsqueeze(1), torch.arange(5)
    batches = list(shuffled(vectors, labels, epochs=2, size=2))
    assert [len(y) for _, y in batches] == [2, 2, 1] * 2
    assert all(torch.equal(x.flatten().long(), y) for x, y in batches)
    for epoch in (batches[:3], batches[3:]):
        assert sorted(torch.cat([y for _, y in epoch]).tolist()) == [0, 1, 2, 3, 4]


def test_descend_takes_a_step_a_batch_and_gives_the_mean_loss():
    """w² from w = 1 with lr 0.25: 1 − 0.5 = 0.5, then 0.25; losses 1 and 0.25, mean 0.625."""
    w = torch.ones(1, requires_grad=True)
    mean = descend(lambda: (w**2).sum(), [(), ()], torch.optim.SGD([w], 0.25), server())
    assert w.item() == 0.25
    assert mean == 0.625


def test_no_batch_is_no_step():
    w = torch.ones(1, requires_grad=True)
    assert descend(lambda: w.sum(), [], torch.optim.SGD([w], 0.25), server()) == 0.0
    assert w.item() == 1.0


def test_a_server_that_leaves_the_finite_numbers_says_so():
    w = torch.ones(1, requires_grad=True)
    with pytest.raises(pn.Diverged, match="The server's training loss became inf in round 3"):
        descend(lambda: (w / 0).sum(), [()], torch.optim.SGD([w], 0.25), server(3))
