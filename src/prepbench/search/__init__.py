"""What each layer costs and gains, the best settings within a budget, sweeps, and the executors that they run on."""
