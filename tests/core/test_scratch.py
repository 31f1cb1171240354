"""Temporary folders: what happens when others look at them while they are made."""

import pytest
from filelock import FileLock, Timeout

from protonorm.core.scratch import LOCK, TRIES, Scratch


@pytest.mark.parametrize("often", [1, TRIES - 1])
def test_a_folder_whose_lock_somebody_holds_for_a_moment_is_replaced_by_another(tmp_path, monkeypatch, often):
    """Who removes abandoned folders tries their locks, perhaps just before their owner does."""
    real, refused = FileLock.acquire, []

    def acquire(self, timeout=None, **options):
        if len(refused) < often:
            refused.append(self.lock_file)
            raise Timeout(self.lock_file)
        return real(self, timeout=timeout, **options)

    monkeypatch.setattr(FileLock, "acquire", acquire)
    with Scratch(tmp_path) as made:
        assert len(refused) == often
        assert str(made.folder / LOCK) not in refused
        assert (made.folder / LOCK).exists()


def test_a_lock_that_is_never_to_be_had_is_told(tmp_path, monkeypatch):
    def acquire(self, timeout=None, **options):
        raise Timeout(self.lock_file)

    monkeypatch.setattr(FileLock, "acquire", acquire)
    with pytest.raises(Timeout):
        Scratch(tmp_path)
