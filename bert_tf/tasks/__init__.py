"""What is particular to a task: its files, its features, its metrics, its predictions. One package per task."""
