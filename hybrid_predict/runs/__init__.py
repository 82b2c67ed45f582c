"""What every command that trains shares: observers, locks, MLflow, statistics over seeds."""
