"""Report page: one HTML file about one run, or several runs compared."""

from protonorm.report.page.write import write_page

__all__ = ["write_page"]
