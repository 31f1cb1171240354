"""The report page: one HTML file that tells of a run, or of several side by side."""

from protonorm.report.page.write import write_page

__all__ = ["write_page"]
