from hypothesis import given, settings
from hypothesis import strategies as st

from protonorm.engines.balance import Costs, assign, reassign


def test_the_longest_goes_first_to_the_least_loaded():
    """Costs 5, 4, 3, 3: 5 to worker 0, 4 to 1, 3 to 1 (4 < 5), 3 to 0 (5 < 7): loads 8 and 7."""
    assert assign({0: 3.0, 1: 5.0, 2: 4.0, 3: 3.0}, [[], []]) == [[1, 3], [2, 0]]


def test_a_new_assignment_must_be_worth_the_moving():
    parts = [[0], [1, 2]]
    assert reassign(parts, {0: 4.0, 1: 2.0, 2: 2.1}) == parts  # 4.1 now, 4.1 at best
    assert reassign(parts, {0: 1.0, 1: 4.0, 2: 3.0}) == [[1], [2, 0]]  # 7 now, 4 assigned anew


@settings(derandomize=True, deadline=None)
@given(st.dictionaries(st.integers(0, 50), st.floats(0.001, 100), min_size=1), st.integers(1, 5))
def test_everybody_is_assigned_once_and_no_worker_waits_for_more_than_the_longest_client(costs, workers):
    parts = assign(costs, [[]] * workers)
    assert sorted(client for part in parts for client in part) == sorted(costs)
    loads = [sum(costs[client] for client in part) for part in parts]
    assert max(loads) - min(loads) <= max(costs.values()) + 1e-9


def test_costs_are_judged_by_samples_until_something_is_measured():
    """Clients 0 to 3 of 10, 20, 30, 40 samples, with networks of two kinds in turn."""
    costs = Costs([10, 20, 30, 40], 2)
    assert [costs.of(id) for id in range(4)] == [10, 20, 30, 40]
    costs.note(0, 5.0)  # half a second a sample, of the one kind that is known
    assert [costs.of(id) for id in range(4)] == [5, 10, 15, 20]
    costs.note(1, 2.0)  # a tenth of a second a sample for the other kind
    assert [costs.of(id) for id in range(4)] == [5, 2, 15, 4]
    costs.note(0, 7.0)  # the last time counts for the client, both for its kind: 12 seconds for 20 samples
    assert [costs.of(id) for id in range(4)] == [7, 2, 18, 4]
