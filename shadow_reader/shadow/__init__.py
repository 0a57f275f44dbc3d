"""What reads: model, state on the grid, forks, lease, reader loop. Knows no database."""
