"""The exporters: one module or package per source, discovered by name; see CONTRIBUTING.md."""
