import torch

from protonorm.setup import Setup
from tests.support import spiral


def test_building_a_workspace_draws_nothing_from_the_callers_randomness():
    """Else the server, in whose seeded part replies are read, would draw other numbers when clients live elsewhere."""
    setup = Setup(spiral(algorithm="fedgh"))
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    setup.client(0, 1)
    assert torch.equal(torch.rand(3), expected)
