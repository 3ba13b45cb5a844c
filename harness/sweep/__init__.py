"""A study from the outside: plan, render, launch, status."""
