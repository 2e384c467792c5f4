"""A night of fuzzing: what ci/nightly does."""
