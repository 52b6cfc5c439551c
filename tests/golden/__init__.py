"""What every estimator and command answers, recorded before a change and compared after it."""
