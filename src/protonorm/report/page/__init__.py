"""Report page: one HTML file about one run, or several runs compared."""

from protonorm.report.page.groups import by_method
from protonorm.report.page.write import figure_rows, write_page

__all__ = ["by_method", "figure_rows", "write_page"]
