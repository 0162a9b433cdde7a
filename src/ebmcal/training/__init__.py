"""The method: energies, losses, methods, the plan of a training and the trainers that follow it."""
