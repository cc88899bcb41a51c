"""The traced part of generation: how each kind of method runs its decode steps. `skipjax.programs` jits it."""
