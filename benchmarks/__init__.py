"""Speed as ratios: everything that is compared runs side by side in one call."""
