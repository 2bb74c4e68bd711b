"""Google Sheets: ranges of a spreadsheet read and written."""
