"""What each source means: one module or package per source, found by name; see CONTRIBUTING.md."""
