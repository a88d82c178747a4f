"""What every experiment shares: options, jobs, results, data sets, measures and baselines."""
